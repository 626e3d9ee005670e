"""Exact codecs of dates, times, durations and time zones."""

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from nbflow.errors import UndecodableError
from nbflow.values.nodes import Node, Reader, Refused, Writer, decodes, encodes, forms, type_name

Tagged = dict[str, Any]
FormOf = Callable[[Node], Any]


def zone_node(zone: tzinfo | None) -> Node:
    """A time zone as a node: UTC, a fixed offset, or a named zone; other classes are refused."""
    if zone is None:
        return None
    if zone is UTC:
        return "UTC"
    if type(zone) is timezone:
        offset = zone.utcoffset(None)
        node: Tagged = {"offset": [offset.days, offset.seconds, offset.microseconds]}
        if (name := zone.tzname(None)) != timezone(offset).tzname(None):
            node["name"] = name
        return node
    if type(zone) is ZoneInfo and zone.key:
        return {"zone": zone.key}
    raise Refused(
        type_name(type(zone)),
        "only UTC, fixed offsets and zoneinfo zones come back as they were",
        "use zoneinfo.ZoneInfo",
    )


def zone_back(node: Node) -> tzinfo | None:
    """The time zone of `zone_node`."""
    if node is None:
        return None
    if node == "UTC":
        return UTC
    if "offset" in node:
        days, seconds, micros = node["offset"]
        offset = timedelta(days, seconds, micros)
        return timezone(offset, node["name"]) if "name" in node else timezone(offset)
    try:
        return ZoneInfo(node["zone"])
    except (OSError, LookupError, ValueError) as error:
        msg = f"time zone {node['zone']!r} is not known here; install the package 'tzdata'"
        raise UndecodableError(msg, needs=f"time zone {node['zone']}") from error


@encodes(datetime, time)
def _moment(_writer: Writer, value: datetime | time) -> Node:
    zone = zone_node(value.tzinfo)
    node: Tagged = {"$": type(value).__name__, "v": value.replace(tzinfo=None, fold=0).isoformat()}
    if zone is not None:
        node["tz"] = zone
        node["iso"] = value.isoformat()
    if value.fold:
        node["fold"] = 1
    return node


@decodes("datetime")
def _datetime_back(_reader: Reader, node: Tagged) -> datetime:
    value = datetime.fromisoformat(node["v"])
    return value.replace(tzinfo=zone_back(node.get("tz")), fold=node.get("fold", 0))


@decodes("time")
def _time_back(_reader: Reader, node: Tagged) -> time:
    return time.fromisoformat(node["v"]).replace(tzinfo=zone_back(node.get("tz")), fold=node.get("fold", 0))


@encodes(date)
def _date(_writer: Writer, value: date) -> Node:
    return {"$": "date", "v": value.isoformat()}


@decodes("date")
def _date_back(_reader: Reader, node: Tagged) -> date:
    return date.fromisoformat(node["v"])


@encodes(timedelta)
def _timedelta(_writer: Writer, value: timedelta) -> Node:
    return {"$": "timedelta", "v": [value.days, value.seconds, value.microseconds]}


@decodes("timedelta")
def _timedelta_back(_reader: Reader, node: Tagged) -> timedelta:
    return timedelta(*node["v"])


@forms("timedelta")
def _timedelta_form(_form: FormOf, node: Tagged) -> float:
    return timedelta(*node["v"]).total_seconds()


@forms("datetime", "time", "date")
def _text_form(_form: FormOf, node: Tagged) -> str:
    return str(node.get("iso", node["v"]))

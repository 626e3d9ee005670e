"""Retries and timeout (API.md §1; S13, S22 to S24)."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbflow.core import config
from nbflow.core.config import DEFAULT, ResolvedConfig, as_mapping, delay_after, resolve, scaled
from nbflow.errors import UsageError

BACKOFFS = ["constant", "linear", "exponential"]
spans = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=90_000))
configs = st.builds(
    ResolvedConfig,
    limit=st.integers(0, 10_000),
    delay=spans,
    backoff=st.sampled_from(BACKOFFS),
    timeout=spans,
    retries_given=st.booleans(),
    backoff_given=st.booleans(),
)


def backoff_of(ctx, error):
    return 3


def test_nothing_given_is_the_one_shared_default():
    assert (
        resolve("embed") is resolve("load", config={}) is resolve("load", config={"retries": None, "timeout": None}) is DEFAULT
    )


def test_the_defaults_are_five_retries_ten_seconds_exponential_ten_minutes():
    assert (DEFAULT.limit, DEFAULT.delay, DEFAULT.backoff, DEFAULT.timeout, DEFAULT.errors, DEFAULT.retries_given) == (
        5,
        timedelta(seconds=10),
        "exponential",
        timedelta(minutes=10),
        None,
        False,
    )


def test_a_number_is_the_limit():
    found = resolve("embed", retries=0)
    assert (found.limit, found.delay, found.retries_given) == (0, DEFAULT.delay, True)


def test_missing_keys_take_defaults():
    found = resolve("embed", retries={"delay": "1 minute"}, timeout="1h")
    assert (found.limit, found.delay, found.backoff, found.timeout) == (
        5,
        timedelta(minutes=1),
        "exponential",
        timedelta(hours=1),
    )
    assert not found.backoff_given


def test_a_timeout_alone_keeps_the_default_retries():
    found = resolve("embed", timeout=30)
    assert (found.limit, found.retries_given, found.timeout) == (5, False, timedelta(seconds=30))


def test_the_cloudflare_spelling_means_the_same():
    retries = {"limit": 3, "delay": "1 second", "backoff": "linear"}
    assert resolve("x", config={"retries": retries, "timeout": "1m"}) == resolve("x", retries=retries, timeout="1m")


def test_a_delay_may_be_a_function_and_errors_one_class_or_several():
    found = resolve("embed", retries={"delay": backoff_of, "errors": OSError})
    assert (found.delay_fn, found.errors) == (backoff_of, (OSError,))
    assert resolve("embed", retries={"errors": [OSError, KeyError]}).errors == (OSError, KeyError)


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        ({"retries": {"limits": 3}}, r"retries has the unknown key 'limits' with the value 3.*did you mean 'limit'\?"),
        ({"config": {"retry": 3}}, r"config has the unknown key 'retry' with the value 3.*did you mean 'retries'\?"),
        ({"config": {"retries": {"x": 3}}}, r"config\['retries'\] has the unknown key 'x'"),
        ({"retries": {3: 3}}, "retries has the unknown key 3"),
        ({"retries": -1}, "retries is -1;"),
        ({"retries": True}, "retries is True;"),
        ({"retries": 2.5}, r"retries is 2\.5;"),
        ({"retries": "3"}, "retries is '3';"),
        ({"retries": {"limit": -1}}, r"retries\['limit'\] is -1;"),
        ({"retries": {"limit": 1.5}}, r"retries\['limit'\] is 1\.5;"),
        ({"retries": {"limit": None}}, r"retries\['limit'\] is None;"),
        ({"retries": {"limit": float("inf")}}, r"retries\['limit'\] is inf;"),
        ({"retries": {"delay": -1}}, r"retries\['delay'\] is -1: .*negative"),
        ({"retries": {"delay": "soon"}}, r"retries\['delay'\] is 'soon': "),
        ({"retries": {"delay": None}}, r"retries\['delay'\] is None: "),
        ({"retries": {"backoff": "fib"}}, r"retries\['backoff'\] is 'fib'; write 'constant', 'linear', 'exponential'"),
        ({"retries": {"backoff": None}}, r"retries\['backoff'\] is None;"),
        ({"retries": {"errors": "OSError"}}, r"retries\['errors'\] is 'OSError'; 'OSError' is no exception class"),
        ({"retries": {"errors": (OSError, int)}}, ".*<class .int.> is no exception class"),
        ({"timeout": "x"}, "timeout is 'x': "),
        ({"timeout": -5}, "timeout is -5: .*negative"),
        ({"timeout": 0}, "timeout is 0: no attempt could end in time"),
        ({"timeout": True}, "timeout is True: "),
        ({"config": {"timeout": "x"}}, r"config\['timeout'\] is 'x': "),
        ({"config": 3}, "config is 3;"),
        ({"config": {}, "retries": 3}, "config= and retries= are both given"),
        ({"config": {}, "timeout": 3}, "config= and timeout= are both given"),
    ],
)
def test_a_mistake_names_step_key_and_value(given_, says):
    with pytest.raises(UsageError, match=f"^step 'embed': {says}"):
        resolve("embed", **given_)


@given(configs)
def test_what_is_recorded_reads_back_the_same(found):
    assert ResolvedConfig.from_json(found.to_json()) == found


def test_delay_function_and_error_classes_are_not_recorded_and_taken_live():
    found = resolve("embed", retries={"limit": 2, "delay": backoff_of, "errors": OSError})
    body = found.to_json()
    assert body == {"retries": {"limit": 2, "backoff": "exponential"}, "timeout": 600, "retries_given": True}
    changed = resolve("embed", retries={"limit": 9, "delay": (newer := lambda ctx, error: 1), "errors": KeyError})
    kept = ResolvedConfig.from_json(body, live=changed)
    assert (kept.limit, kept.delay_fn, kept.errors) == (2, newer, (KeyError,))


def test_a_recorded_delay_outlives_a_delay_function_put_in_its_place():
    body = resolve("embed", retries={"delay": 7}).to_json()
    kept = ResolvedConfig.from_json(body, live=resolve("embed", retries={"delay": backoff_of}))
    assert (kept.delay, kept.delay_fn) == (timedelta(seconds=7), None)


def test_users_see_the_config_as_a_mapping_in_seconds():
    assert as_mapping(DEFAULT) == {"retries": {"limit": 5, "delay": 10, "backoff": "exponential"}, "timeout": 600}
    assert "delay" not in as_mapping(resolve("embed", retries={"delay": backoff_of}))["retries"]


def test_changing_what_a_user_sees_changes_nothing():
    as_mapping(DEFAULT)["retries"]["limit"] = 99
    assert as_mapping(DEFAULT)["retries"]["limit"] == 5


@pytest.mark.parametrize(
    ("backoff", "waits"), [("constant", [3, 3, 3, 3]), ("linear", [3, 6, 9, 12]), ("exponential", [3, 6, 12, 24])]
)
def test_delays_grow_by_their_backoff(backoff, waits):
    found = resolve("embed", retries={"delay": 3, "backoff": backoff})
    assert [delay_after(found, k) for k in (1, 2, 3, 4)] == [timedelta(seconds=each) for each in waits]


@given(configs, st.integers(1, 20_000))
def test_a_delay_never_shrinks_and_never_overflows(found, failures):
    assert found.delay <= delay_after(found, failures) <= delay_after(found, failures + 1) <= config._FOREVER


@given(spans, st.integers(1, 100))
def test_what_a_delay_function_gives_is_scaled_only_when_backoff_is_named(delay, failures):
    assert scaled(resolve("x", retries={"delay": backoff_of}), delay, failures) == delay
    named = resolve("x", retries={"delay": backoff_of, "backoff": "linear"})
    assert scaled(named, delay, failures) == min(delay * failures, config._FOREVER)

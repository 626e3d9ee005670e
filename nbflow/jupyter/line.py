"""The raw line of a magic: words, options, and Python expressions that end where the next option begins.

The line is never handed to a shell-like splitter: braces, quotes, `$x` and spaces belong to the user's Python. An option is
a dash and a letter (or two dashes) after white space, outside brackets and quotes; `-5` and `a - b` are Python.
"""

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from nbflow.core import durations
from nbflow.errors import UsageError

AWAITED = "--awaited-by-the-cell"
"""Set by the input transformer, never by a person: the cell awaits what the magic gives back."""

_OPTION = re.compile(r"--?[A-Za-z][\w-]*")
_OPENING = {"(": ")", "[": "]", "{": "}"}
_CLOSING = frozenset(_OPENING.values())
_NUMBER = re.compile(r"\d+(\.\d+)?")
_DURATION = re.compile(r"\d+(\.\d+)?\s*[A-Za-zµ]+|\d+(\.\d+)?")


class Takes(Enum):
    """What follows an option."""

    NOTHING = "nothing"
    WORD = "a word"
    DURATION = "a duration, or nothing"
    EXPRESSION = "a Python expression up to the next option"


@dataclass(frozen=True, slots=True)
class Given:
    """A line taken apart: plain words in order, and what each option was given (None where it takes nothing)."""

    words: tuple[str, ...] = ()
    options: Mapping[str, str | None] = field(default_factory=dict)

    def __contains__(self, option: str) -> bool:
        return option in self.options


class Scanner:
    """Walks over one line."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def skip(self) -> bool:
        """Go past white space; False at the end of the line."""
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.at < len(self.text)

    @property
    def rest(self) -> str:
        """What has not been read yet."""
        return self.text[self.at :].strip()

    def at_option(self) -> bool:
        """Whether an option begins here."""
        return _OPTION.match(self.text, self.at) is not None or self.text.startswith("--", self.at)

    def option(self) -> tuple[str, bool]:
        """Read an option's name; True where `=` and its value follow at once."""
        match = _OPTION.match(self.text, self.at)
        end = match.end() if match else self._end_of_word()
        if end < len(self.text) and not self.text[end].isspace() and self.text[end] != "=":
            end = self._end_of_word()
        name, self.at = self.text[self.at : end], end
        if self.text.startswith("=", self.at):
            self.at += 1
            return name, True
        return name, False

    def word(self) -> str:
        """Read a word: up to white space, or what stands between quotes."""
        quote = self.text[self.at]
        if quote not in "'\"":
            start, self.at = self.at, self._end_of_word()
            return self.text[start : self.at]
        end = self.text.find(quote, self.at + 1)
        if end < 0:
            message = f"the quote that opens at {self._place(self.at)} is never closed"
            raise UsageError(message)
        text, self.at = self.text[self.at + 1 : end], end + 1
        if self.at < len(self.text) and not self.text[self.at].isspace():
            behind = self.text[end + 1 : self._end_of_word()]
            message = f"{behind!r} follows the closing quote of {text!r}; put a space between them"
            raise UsageError(message)
        return text

    def expression(self) -> str:
        """Read Python up to the next option outside brackets and quotes."""
        start, text = self.at, self.text
        open_brackets: list[int] = []
        while self.at < len(text):
            char = text[self.at]
            if char in "'\"":
                self._string()
                continue
            if char in _OPENING:
                open_brackets.append(self.at)
            elif char in _CLOSING:
                if not open_brackets or _OPENING[text[open_brackets[-1]]] != char:
                    message = f"{char!r} at {self._place(self.at)} closes nothing"
                    raise UsageError(message)
                open_brackets.pop()
            elif char.isspace() and not open_brackets:
                behind = len(text) - len(text[self.at :].lstrip())
                if behind < len(text) and (_OPTION.match(text, behind) or text.startswith("--", behind)):
                    break
            self.at += 1
        if open_brackets:
            place = open_brackets[-1]
            message = f"{text[place]!r} at {self._place(place)} is never closed"
            raise UsageError(message)
        return text[start : self.at].strip()

    def _string(self) -> None:
        """Go past a string literal; its prefix was ordinary text."""
        start, text = self.at, self.text
        quote = text[start] * 3 if text.startswith(text[start] * 3, start) else text[start]
        self.at += len(quote)
        while self.at < len(text):
            if text[self.at] == "\\":
                self.at += 2
            elif text.startswith(quote, self.at):
                self.at += len(quote)
                return
            else:
                self.at += 1
        message = f"the quote that opens at {self._place(start)} is never closed"
        raise UsageError(message)

    def _end_of_word(self) -> int:
        end = self.at
        while end < len(self.text) and not self.text[end].isspace():
            end += 1
        return end

    def _place(self, index: int) -> str:
        return f"{self.text[index : index + 20]!r}"


def split(line: str, options: Mapping[str, Takes], aliases: Mapping[str, str] | None = None, *, magic: str) -> Given:
    """Take a line apart by a table of options; every mistake is a UsageError and nothing else happens."""
    scanner = Scanner(line)
    words: list[str] = []
    given: dict[str, str | None] = {}
    while scanner.skip():
        if not scanner.at_option():
            words.append(scanner.word())
            continue
        written, joined = scanner.option()
        name = (aliases or {}).get(written, written)
        if name not in options:
            raise UsageError(_unknown(written, options, given, magic))
        if name in given:
            message = f"{name} is given twice"
            raise UsageError(message)
        given[name] = _value(scanner, name, options[name], joined, last=not words)
    return Given(tuple(words), given)


def _unknown(written: str, options: Mapping[str, Takes], given: Mapping[str, str | None], magic: str) -> str:
    known = ", ".join(sorted(name for name in options if name != AWAITED))
    text = f"{magic} has no option {written!r}; it has {known}" if known else f"{magic} has no option {written!r}"
    if any(options[name] is Takes.EXPRESSION for name in given):
        text += " (if it belongs to the expression before it, put that in parentheses)"
    return text


def _value(scanner: Scanner, name: str, takes: Takes, joined: bool, *, last: bool) -> str | None:
    there = scanner.skip() if not joined else scanner.at < len(scanner.text) and not scanner.text[scanner.at].isspace()
    if takes is Takes.NOTHING:
        if joined:
            message = f"{name} takes no value"
            raise UsageError(message)
        return None
    if takes is Takes.DURATION:
        if there:
            return _duration(scanner, name, joined, no_id_yet=last)
        if joined:
            message = f"{name}= needs a duration after it"
            raise UsageError(message)
        return None
    if not there or (not joined and scanner.at_option()):
        what = "a Python expression" if takes is Takes.EXPRESSION else "a value"
        message = f"{name} needs {what} after it"
        raise UsageError(message)
    return scanner.expression() if takes is Takes.EXPRESSION else scanner.word()


def _duration(scanner: Scanner, name: str, joined: bool, *, no_id_yet: bool) -> str | None:
    """A duration of one or two words; a word that can't be one is the id where none was given before."""
    if joined or scanner.text[scanner.at] in "'\"":
        return scanner.word()
    if scanner.at_option():
        return None
    before = scanner.at
    word = scanner.word()
    if not _DURATION.fullmatch(word):
        if not no_id_yet:
            message = f"{word!r} after {name} is not a duration such as 30s or '5 minutes'"
            raise UsageError(message)
        scanner.at = before
        return None
    if _NUMBER.fullmatch(word):
        after = scanner.at
        if scanner.skip() and not scanner.at_option() and (unit := scanner.word()).isalpha():
            return f"{word} {unit}"
        scanner.at = after
        return word
    return word + _more_parts(scanner)


def _more_parts(scanner: Scanner) -> str:
    """The rest of "1h 30m"."""
    parts, after = "", scanner.at
    while scanner.skip() and not scanner.at_option():
        word = scanner.word()
        if not _DURATION.fullmatch(word) or _NUMBER.fullmatch(word):
            break
        parts, after = f"{parts} {word}", scanner.at
    scanner.at = after
    return parts


CELL_OPTIONS: dict[str, Takes] = {
    "--id": Takes.WORD,
    "--params": Takes.EXPRESSION,
    "--as": Takes.WORD,
    "--wait": Takes.DURATION,
    "--again": Takes.NOTHING,
    "--define": Takes.NOTHING,
    "--schedule": Takes.EXPRESSION,
    "--each": Takes.EXPRESSION,
    AWAITED: Takes.NOTHING,
}
CELL_ALIASES = {"-p": "--params", "-w": "--wait"}
_ALONE = ("--define", "--schedule")


@dataclass(frozen=True, slots=True)
class CellLine:
    """What the line of a `%%workflow` cell asks for.

    Attributes:
        params: source text of the expression.
        schedule: source text of the expression that gives the cron line.
        each: source text of the expression that gives the params of many instances.
        bind: the variable to bind the instance to.
        at_most: seconds, of the duration after `--wait`.
        awaited: the cell awaits the magic's answer.
    """

    instance_id: str | None = None
    params: str | None = None
    bind: str | None = None
    wait: bool = False
    at_most: float | None = None
    again: bool = False
    define: bool = False
    schedule: str | None = None
    each: str | None = None
    awaited: bool = False


def parse_cell_line(line: str) -> CellLine:
    """Read the line of a `%%workflow` cell; UsageError for anything that could be meant otherwise."""
    given = split(line, CELL_OPTIONS, CELL_ALIASES, magic="%%workflow")
    options = given.options
    if len(given.words) > 1:
        message = f"one ID is expected, not {' '.join(map(repr, given.words))}; options begin with --"
        raise UsageError(message)
    if given.words and "--id" in given:
        message = f"two ids are given, {given.words[0]!r} and {options['--id']!r}; leave one out"
        raise UsageError(message)
    for alone in _ALONE:
        others = [name for name in (*options, *given.words) if name not in (alone, AWAITED)]
        if alone in given and others:
            does = "only registers the class" if alone == "--define" else "starts no instance of its own"
            message = f"{alone} {does}; leave out {', '.join(others)}"
            raise UsageError(message)
    if (schedule := options.get("--schedule")) is not None:
        compile_params(schedule)
    at_most = options.get("--wait")
    if (params := options.get("--params")) is not None:
        compile_params(params)
    if (each := options.get("--each")) is not None:
        compile_params(each)
        if params is not None:
            message = "--each gives the params of each instance and --params those of one; leave one out"
            raise UsageError(message)
    return CellLine(
        instance_id=given.words[0] if given.words else options.get("--id"),
        params=params,
        bind=_variable(options.get("--as")),
        wait="--wait" in given,
        at_most=None if at_most is None else seconds_of(at_most, "--wait"),
        again="--again" in given,
        define="--define" in given,
        schedule=schedule,
        each=each,
        awaited=AWAITED in given,
    )


def seconds_of(text: str, option: str) -> float:
    """A duration of a magic line in seconds; a bare number is seconds."""
    value: str | float = float(text) if _NUMBER.fullmatch(text) else text
    return durations.duration(value, what=option).total_seconds()


def compile_params(source: str) -> object:
    """Compile an expression of a magic line; its mistakes are told in one line."""
    try:
        return compile(source, "<expression of the magic line>", "eval")
    except (SyntaxError, ValueError) as error:
        message = f"{source!r} is not one Python expression: {getattr(error, 'msg', error)}"
        raise UsageError(message) from None


def _variable(name: str | None) -> str | None:
    if name is not None and (not name.isidentifier() or keyword.iskeyword(name)):
        message = f"--as {name!r}: that is no name for a variable"
        raise UsageError(message)
    return name

"""Judges that are asked: an endpoint, against a stub server that speaks the public protocol, and people's verdicts."""

from __future__ import annotations

import http.server
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml
from pydantic import ValidationError

from tasks import corpus
from tasks.errors import Unreachable, UserError
from tasks.language import judge, text
from tasks.language.judges import chat, endpoint
from tasks.language.judges.chat import Pace
from tasks.language.readers import Row
from tasks.runtime import config, records
from tests.test_corpus import section, shared

ROOT = Path(__file__).parents[1]
KEY = "sk-planted-secret-0123456789"


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Stub:
    """A chat-completions server: POST /v1/chat/completions, JSON in and out. `script` answers first, then `says`."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.script: list[Callable[[Any], None]] = []
        self.says: Callable[[str], str | None] = lambda question: "[[A]]"
        stub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                stub.requests.append(body)
                stub.headers.append(dict(self.headers))
                assert self.path == "/v1/chat/completions"
                if stub.script:
                    stub.script.pop(0)(self)
                else:
                    content = stub.says(body["messages"][-1]["content"])
                    message = {"role": "assistant", "content": content}
                    choice = {"index": 0, "message": message, "finish_reason": "stop"}
                    self.send(200, {"id": "x", "object": "chat.completion", "choices": [choice]})

            def send(self, status: int, value: Any, **headers: str) -> None:
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                for name, held in headers.items():
                    self.send_header(name.replace("_", "-"), held)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Stub]:
    monkeypatch.chdir(tmp_path)  # the cache lies below the folder the stages run in
    monkeypatch.setenv("JUDGE_KEY", KEY)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    made = Stub()
    yield made
    made.close()


def settings(url: str, /, **changes: Any) -> dict[str, Any]:
    """As params.yaml gives them, through the config class."""
    values = {"kind": "endpoint", "url": url, "model": "some-model", "key_variable": "JUDGE_KEY", "template": None}
    values |= {"options": {"temperature": 0, "max_tokens": 16}, "requests_per_minute": 1e9, "parallel": 1}
    values |= {"timeout": 10.0, "attempts": 4}
    return config.EndpointJudge.model_validate(values | changes).model_dump()


def ready(stub: Stub, clock: Clock | None = None, **changes: Any) -> Any:
    """A loaded endpoint judge whose pace runs on `clock`."""
    judge.keep_endpoint(settings(stub.url, **changes), Path("judge"))
    made = judge.load(Path("judge"))
    clock = clock or Clock()
    made._pace = Pace(made._settings["requests_per_minute"], clock=clock, sleep=clock.sleep)
    return made


def status(code: int, **headers: str) -> Callable[[Any], None]:
    return lambda handler: handler.send(code, {"error": {"message": "not now"}}, **headers)


def answers_in(question: str) -> tuple[str, str]:
    first = question.partition("[Answer A]\n")[2].partition("\n\n[Answer B]")[0]
    return first, question.partition("[Answer B]\n")[2].partition("\n\nEnd your reply")[0]


def longer(question: str) -> str:
    first, second = answers_in(question)
    return "I prefer ... [[A]]" if len(first) > len(second) else "[[B]]" if len(second) > len(first) else "[[C]]"


def test_the_request_is_the_protocol_s(stub: Stub) -> None:
    chatted = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi {second}"}]
    assert ready(stub).prefer(["Name a {first}."], ["red"], ["blue"]) == [1.0]
    ready(stub).prefer([chatted], ["red"], ["blue"])
    plain, roles = (request["messages"][0] for request in stub.requests)
    assert stub.requests[0] | {"messages": []} == {
        "model": "some-model", "messages": [], "temperature": 0, "max_tokens": 16,
    }  # fmt: skip
    assert stub.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert plain["role"] == "user"
    # What a text holds is not taken for a place of the template.
    assert "[Prompt]\nName a {first}.\n" in plain["content"]
    assert answers_in(plain["content"]) == ("red", "blue")
    assert "system: Be kind.\nuser: Hi {second}" in roles["content"]


def test_both_orders_are_asked_and_a_bias_to_the_first_place_gives_one_half(stub: Stub) -> None:
    firsts, seconds = [f"answer {i}" for i in range(6)], [f"other {i}" for i in range(6)]
    found = judge.compare(ready(stub), ["p"] * 6, firsts, seconds)
    assert found.outcomes == [0.5] * 6
    assert found.agreement == 0.0
    asked = {answers_in(r["messages"][0]["content"]) for r in stub.requests}
    assert asked == {*zip(firsts, seconds, strict=True), *zip(seconds, firsts, strict=True)}


def test_a_real_preference_comes_through(stub: Stub) -> None:
    stub.says = longer
    found = judge.compare(ready(stub), ["p"] * 3, ["long one", "x", "same"], ["x", "long one", "like"])
    assert found.outcomes == [1.0, 0.0, 0.5]
    assert found.agreement == 1.0


def test_equal_texts_tie_unasked(stub: Stub) -> None:
    assert judge.compare(ready(stub), ["p", "p"], ["a", "b"], ["a", "b"]) == judge.Verdicts([0.5, 0.5], None)
    assert stub.requests == []


@pytest.mark.parametrize(
    ("reply", "share"),
    [
        ("[[A]]", 1.0), ("[[B]]", 0.0), ("[[C]]", 0.5), ("A", 1.0), (" b. ", 0.0),
        ("At first [[A]], but no: [[B]]", 0.0),
        ("Answer A is better", None), ("", None), ("[[D]]", None), ("Both", None), ("[A]", None),
    ],
)  # fmt: skip
def test_what_counts_as_a_verdict(reply: str, share: float | None) -> None:
    assert endpoint.share(reply) == share


def test_a_reply_without_a_verdict_is_a_tie_and_is_counted(stub: Stub) -> None:
    stub.says = lambda question: None if answers_in(question)[0] == "one" else "I cannot say."
    made = ready(stub)
    assert made.prefer(["p"] * 3, ["one", "two", "two"], ["x", "y", "y"]) == [0.5, 0.5, 0.5]
    assert made.counts() == {"unparsable": 2}  # different questions
    again = ready(stub)
    again.prefer(["p"] * 3, ["one", "two", "two"], ["x", "y", "y"])
    assert again.counts() == {"unparsable": 2}  # from the cache as from the endpoint: it goes into metrics


def test_a_rerun_asks_nothing_and_needs_no_key(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    stub.says = longer
    before = judge.compare(ready(stub), ["p", "q"], ["aa", "b"], ["a", "bb"])
    asked = len(stub.requests)
    assert asked == 4
    monkeypatch.delenv("JUDGE_KEY")
    assert judge.compare(ready(stub), ["p", "q"], ["aa", "b"], ["a", "bb"]) == before
    assert len(stub.requests) == asked


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other-model"},
        {"template": "{prompt} {first} {second}: A or B?"},
        {"options": {"temperature": 1}},
    ],
)
def test_what_decides_the_reply_is_part_of_the_key(stub: Stub, change: dict[str, Any]) -> None:
    ready(stub).prefer(["p"], ["a"], ["b"])
    ready(stub, **change).prefer(["p"], ["a"], ["b"])
    assert len(stub.requests) == 2
    ready(stub, attempts=2, timeout=3.0, parallel=3).prefer(["p"], ["a"], ["b"])  # these decide nothing
    assert len(stub.requests) == 2
    for texts in (["q"], ["a"], ["b"]), (["p"], ["b"], ["a"]), (["p"], ["a"], ["c"]):
        ready(stub).prefer(*texts)
    assert len(stub.requests) == 5


def test_several_questions_at_once_keep_their_places(stub: Stub) -> None:
    stub.says = longer
    firsts = ["x" * (i % 7 + 1) for i in range(40)]
    found = ready(stub, parallel=8).prefer([f"p{i}" for i in range(40)], firsts, ["xxxx"] * 40)
    assert found == [1.0 if len(f) > 4 else 0.0 if len(f) < 4 else 0.5 for f in firsts]


@pytest.mark.parametrize("code", [408, 409, 429, 500, 502, 503, 529])
def test_what_may_pass_is_tried_again_with_doubled_waits(stub: Stub, code: int) -> None:
    clock = Clock()
    stub.script = [status(code)] * 3
    assert ready(stub, clock).prefer(["p"], ["a"], ["b"]) == [1.0]
    assert len(stub.requests) == 4
    assert clock.slept == pytest.approx([1, 2, 4], abs=1e-6)


def test_retry_after_is_obeyed_in_both_its_forms(stub: Stub) -> None:
    clock = Clock()
    stub.script = [status(429, Retry_After="17"), status(503, Retry_After="0.5")]
    ready(stub, clock).prefer(["p"], ["a"], ["b"])
    assert clock.slept == pytest.approx([17, 0.5], abs=1e-6)
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    assert chat._asked_wait(at, 1.0) == pytest.approx(100, abs=5)
    past = format_datetime(datetime.now(UTC) - timedelta(seconds=100), usegmt=True)
    assert chat._asked_wait(past, 1.0) == 0
    assert chat._asked_wait("soon", 3.0) == 3.0


def test_a_wait_that_is_too_long_ends_it(stub: Stub) -> None:
    stub.script = [status(429, Retry_After="86400")]
    with pytest.raises(Unreachable, match="asks to wait 86400 s"):
        ready(stub).prefer(["p"], ["a"], ["b"])


def test_a_timeout_and_a_broken_connection_are_tried_again(stub: Stub) -> None:
    release = threading.Event()

    def hang(handler: Any) -> None:
        release.wait(20)
        handler.close_connection = True

    def breaks(handler: Any) -> None:
        handler.close_connection = True

    stub.script = [hang, breaks]
    clock = Clock()
    assert ready(stub, clock, timeout=0.3).prefer(["p"], ["a"], ["b"]) == [1.0]
    release.set()
    assert clock.slept == pytest.approx([1, 2], abs=1e-6)


def test_after_the_last_attempt_it_says_so_and_what_came_is_kept(stub: Stub) -> None:
    made = ready(stub)
    made.prefer(["p"], ["a"], ["b"])
    stub.script = [status(500)] * 4
    with pytest.raises(Unreachable, match=r"failed 4 times .*last: status 500: .*not now.*the same command goes on"):
        made.prefer(["p", "q"], ["a", "a"], ["b", "b"])
    assert len(stub.requests) == 5
    ready(stub).prefer(["p", "q"], ["a", "a"], ["b", "b"])
    assert len(stub.requests) == 6


def test_what_others_got_while_one_failed_is_kept(stub: Stub) -> None:
    def refuse_q(question: str) -> str:
        if "[Prompt]\nq\n" in question:
            raise ConnectionError  # the server drops the connection
        return "[[A]]"

    stub.says = refuse_q
    with pytest.raises(Unreachable):
        ready(stub, attempts=1, parallel=2).prefer(["q", "p"], ["a", "a"], ["b", "b"])
    stub.says = longer
    stub.requests.clear()
    kept = ready(stub)
    kept.prefer(["p"], ["a"], ["b"])
    assert len(stub.requests) <= 1  # none, unless "p" had not started when "q" failed


@pytest.mark.parametrize("code", [400, 401, 403, 404, 422, 302])
def test_a_refusal_is_not_tried_again(stub: Stub, code: int) -> None:
    stub.script = [status(code, Location="http://127.0.0.1:1/")]
    with pytest.raises(UserError, match=f"refuses: status {code}"):
        ready(stub).prefer(["p"], ["a"], ["b"])
    assert len(stub.requests) == 1


@pytest.mark.parametrize("body", [b"<html>hello", b"[]", b'{"choices": []}', b'{"choices": [{"message": 3}]}'])
def test_what_is_no_chat_completion(stub: Stub, body: bytes) -> None:
    stub.script = [lambda handler: handler.send(200, body)]
    with pytest.raises(UserError, match="expected a chat completion"):
        ready(stub).prefer(["p"], ["a"], ["b"])


def test_requests_are_spaced(stub: Stub) -> None:
    clock = Clock()
    ready(stub, clock, requests_per_minute=30).prefer(["p"] * 4, list("abcd"), list("efgh"))
    assert clock.now == pytest.approx(3 * 2)  # four requests, two seconds apart
    assert len(stub.requests) == 4


def test_the_pace_holds_every_thread(stub: Stub) -> None:
    clock = Clock()
    pace = Pace(60, clock=clock, sleep=clock.sleep)
    pace.wait()
    pace.hold(30)
    pace.wait()
    assert clock.now == 30
    pace.wait()
    assert clock.now == 31


def test_the_key_is_never_shown_and_never_stored(stub: Stub, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    stub.script = [lambda h: h.send(401, {"error": f"bad key {h.headers['Authorization']}"})]
    with pytest.raises(UserError, match=r"bad key Bearer \*\*\*") as refused:
        ready(stub).prefer(["p"], ["a"], ["b"])
    stub.script = [lambda h: h.send(500, {"error": f"bad key {KEY}"})] * 4
    with pytest.raises(Unreachable) as failed:
        ready(stub).prefer(["p"], ["a"], ["b"])
    ready(stub).prefer(["p"], ["a"], ["b"])
    assert KEY not in f"{refused.value}{failed.value}{caplog.text}"
    files = [path for path in Path().rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"judge.json", "replies.sqlite"}
    assert not any(KEY.encode() in path.read_bytes() for path in files)


def test_a_missing_key_is_named(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(UserError, match="key_variable: environment variable JUDGE_KEY is not set"):
        ready(stub).prefer(["p"], ["a"], ["b"])
    assert ready(stub, key_variable=None).prefer(["p"], ["a"], ["b"]) == [1.0]
    assert "Authorization" not in stub.headers[0]


def test_nobody_there(stub: Stub) -> None:
    with pytest.raises(Unreachable, match="ConnectError"):
        ready(stub, url="http://127.0.0.1:9/v1", attempts=2).prefer(["p"], ["a"], ["b"])


def test_the_texts_are_not_kept_with_the_replies(stub: Stub) -> None:
    ready(stub).prefer(["a private prompt"], ["a"], ["b"])
    with sqlite3.connect(".rlhf/verdicts/replies.sqlite") as store:
        ((key, reply),) = store.execute("select key, reply from replies").fetchall()
    assert (len(key), reply) == (64, "[[A]]")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"url": "ftp://host/v1"}, "url is not http"),
        ({"url": "host/v1"}, "url is not http"),
        ({"url": "https://host/v1?key=3"}, "without query"),
        ({"url": "https://me:secret@host/v1"}, "give the key through key_variable"),
        ({"key_variable": "sk-abc"}, "not the name of an environment variable"),
        ({"options": {"model": "x", "stream": True}}, "holds model, stream, which the judge sets itself"),
        ({"requests_per_minute": 0}, "greater than 0"),
        ({"attempts": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_make_no_sense(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        settings("https://host/v1", **change)


@pytest.mark.parametrize("planted", [{"key_variable": KEY}, {"url": f"https://me:{KEY}@host/v1"}])
def test_a_key_in_the_wrong_place_is_refused_and_not_shown(planted: dict[str, str], tmp_path: Path) -> None:
    read = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    read["corpus"]["judge"] = settings("https://host/v1") | planted
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(read), encoding="utf-8")
    with pytest.raises(UserError, match=r"corpus.judge.*key_variable") as refused:
        config.load(tmp_path / "params.yaml")
    assert KEY not in str(refused.value)


def test_verdicts_need_their_columns() -> None:
    columns = {"prompt": "p", "first": "a", "second": "b"}
    table = {"path": "votes.jsonl", "hub": False, "split": None, "columns": columns}
    with pytest.raises(ValidationError, match=r"verdicts.columns names first, prompt, second, expected"):
        config.HumanJudge.model_validate({"kind": "human", "verdicts": table})


def test_a_template_without_its_places(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"template: lacks \{prompt\}, \{second\}"):
        judge.keep_endpoint(settings("https://host/v1", template="{first}?"), tmp_path)


def rows(*values: tuple[Any, Any, Any, Any]) -> list[Row]:
    names = ("prompt", "first", "second", "verdict")
    return [Row(f"votes.jsonl:{n}", dict(zip(names, row, strict=True))) for n, row in enumerate(values, 1)]


def human(tmp_path: Path, *values: tuple[Any, Any, Any, Any]) -> Any:
    judge.keep_human(rows(*values), tmp_path / "judge")
    return judge.load(tmp_path / "judge")


def test_people_s_verdicts_are_matched_by_text_in_either_order(tmp_path: Path) -> None:
    made = human(tmp_path, ("p", " red", "blue", "first"), ("q", "x", "y", "tie"), ("r", "x", "y", "second"))
    assert made.prefer(["p", "p", "q", "r"], ["red", "blue ", "x", "y"], ["blue", "red", "y", "x"]) == [1, 0, 0.5, 1]
    assert made.prefer([[{"role": "user", "content": "p"}]], ["red"], ["blue"]) == [1.0]
    found = judge.compare(made, ["p", "q", "r", "s"], ["blue", "x", "x", "x"], ["red", "y", "y", "y"])
    assert found.outcomes == [0.0, 0.5, 0.0, None]
    assert found.agreement == 1.0


def test_several_people_count_by_their_mean(tmp_path: Path) -> None:
    made = human(tmp_path, *[("p", "a", "b", v) for v in ("first", "first", "tie")], ("p", "b", "a", "first"))
    assert made.prefer(["p"], ["a"], ["b"]) == [(1 + 1 + 0.5 + 0) / 4]


def test_pairs_without_a_verdict_are_counted_and_left_for_people(tmp_path: Path) -> None:
    made = human(tmp_path, ("p", "a", "b", "first"))
    assert judge.leave_unjudged(made, tmp_path / "left.jsonl") == ""
    judge.compare(made, ["p", "q", "q"], ["a", "c", "d"], ["b", "d", "c"])
    assert made.counts() == {"unjudged": 1}  # the two orders of one pair
    assert "1 pairs wait" in judge.leave_unjudged(made, tmp_path / "more" / "left.jsonl")
    (line,) = (tmp_path / "more" / "left.jsonl").read_text().splitlines()
    row = json.loads(line) | {"verdict": "second"}
    # The file comes back as it is, with its verdict.
    assert human(tmp_path, tuple(row.values())).prefer(["q"], ["c"], ["d"]) == [0.0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("p", "a", "b", "left"), r"votes.jsonl:1: verdict is 'left', expected one of first, second, tie"),
        (("p", "a", "b", None), "verdict is None"),
        (("p", "", "b", "tie"), "first is ''"),
        (("p", "a", 3, "tie"), "second is 3"),
        ((None, "a", "b", "tie"), "prompt is None"),
    ],
)
def test_a_verdict_that_says_nothing(row: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        human(tmp_path, row)
    with pytest.raises(UserError, match="holds no row"):
        human(tmp_path)


class Scripted:
    """A pairwise judge by a table of outcomes."""

    name = "scripted"

    def __init__(self, better: Callable[[str, str], float | None]) -> None:
        self.better = better

    def prefer(self, prompts: Any, first: Any, second: Any) -> list[float | None]:
        return [self.better(a, b) for a, b in zip(first, second, strict=True)]

    def counts(self) -> dict[str, int]:
        return {}


def test_a_pairwise_judge_ranks_answers_by_their_wins() -> None:
    ranked = Scripted(lambda a, b: float(len(a) > len(b)))
    assert judge.grade(ranked, ["p", "q"], [["xx", "x", "xxx"], ["x", "xx"]]) == [[0.5, 0.0, 1.0], [0.0, 1.0]]
    first = Scripted(lambda a, b: 1.0)
    assert judge.grade(first, ["p"], [["a", "b", "c"]]) == [[0.5, 0.5, 0.5]]
    gaps = Scripted(lambda a, b: None if "x" in (a, b) else 1.0)
    assert judge.grade(gaps, ["p", "q"], [["x", "y"], ["y", "z"]]) == [None, [0.5, 0.5]]


def test_a_pointwise_judge_prefers_by_its_scores(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def f(prompts, answers):\n    return [len(a) for a in answers]\n")
    judge.keep_function("mine.py:f", tmp_path, tmp_path / "judge")
    made = judge.load(tmp_path / "judge")
    assert judge.has_scores(made)
    assert judge.compare(made, ["p"] * 3, ["aa", "a", "b"], ["a", "aa", "c"]) == judge.Verdicts([1.0, 0.0, 0.5], None)
    assert judge.grade(made, ["p", "q"], [["a", "aaa"], ["aa"]]) == [[1.0, 3.0], [2.0]]


@pytest.fixture
def asked(tmp_path: Path) -> Callable[[Any], tuple[config.Shared, config.Corpus, dict[str, Path]]]:
    """What corpus.run takes, for a judge, on three demonstrations with a byte tokenizer."""
    text.byte_tokenizer().save_pretrained(tmp_path / "base")
    rows = [{"prompt": f"Question {n}?", "answer": f" Answer {n}."} for n in range(9)]
    records.write_jsonl(tmp_path / "data/demonstrations.jsonl", rows)

    def arguments(settings: Any) -> tuple[config.Shared, config.Corpus, dict[str, Path]]:
        inputs = {"base": tmp_path / "base", "out": tmp_path / "corpus"}
        return shared(), section(tmp_path / "data", keep=3, judge=settings), inputs

    return arguments


def test_the_corpus_tries_an_endpoint_before_any_training(stub: Stub, asked: Any) -> None:
    common, cfg, inputs = asked(settings(stub.url))
    corpus.run(common, cfg, **inputs)
    assert len(stub.requests) == 2  # one pair, both orders
    kept = json.loads((inputs["out"] / "judge/judge.json").read_text())
    assert (kept["kind"], kept["key_variable"]) == ("endpoint", "JUDGE_KEY")
    stub.script = [status(401)]
    common, cfg, inputs = asked(settings(stub.url, model="no-such-model"))
    with pytest.raises(UserError, match="refuses: status 401"):
        corpus.run(common, cfg, **inputs)


def test_the_corpus_keeps_people_s_verdicts(asked: Any, tmp_path: Path) -> None:
    names = ("prompt", "first", "second", "verdict")
    records.write_jsonl(tmp_path / "data/votes.jsonl", [dict(zip(names, ("p", "a", "b", "second"), strict=True))])
    table = {"path": "votes.jsonl", "hub": False, "split": None, "columns": {name: name for name in names}}
    common, cfg, inputs = asked({"kind": "human", "verdicts": table})
    metrics = corpus.run(common, cfg, **inputs)
    assert metrics["judge"] == {"verdicts": 1}
    assert judge.load(inputs["out"] / "judge").prefer(["p"], ["a"], ["b"]) == [0.0]


def test_the_kinds_of_judge_are_those_of_the_config() -> None:
    kinds = set(judge._KINDS)
    union = get_type_hints(config.Corpus)["judge"]
    assert {get_args(get_type_hints(member)["kind"])[0] for member in get_args(union)} == kinds

"""Where model, rows and judge come from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from tasks.runtime.sections.section import Count, OpenFraction, Place, Positive, Section, Text, Whole


class Base(Section):
    """The model that everything starts from."""

    model: Text
    """embedded (SmolLM2-135M-Instruct from the package index), tiny (random weights), a hub id, or a folder."""
    revision: Text | None
    """Commit, tag or branch of a hub id."""
    track: Place
    """A file or folder whose change reruns this stage; for a model folder, the folder itself."""

    @model_validator(mode="after")
    def _revision_of_a_hub_id(self) -> Base:
        if self.revision is not None and self.model in ("embedded", "tiny"):
            raise ValueError(f"revision is {self.revision!r}, expected null: model {self.model} has none")
        return self


class Corpus(Section):
    """Demonstrations, prompts, held-out prompts, off-policy pairs and the judge."""

    data: Place
    """Folder in the repository whose change reruns this stage: the user's files, or the embedded downloads' pins."""
    source: Annotated[EmbeddedSource | FileSource, Field(discriminator="kind")]
    """Where the rows come from."""
    judge: Annotated[
        FittedJudge | ClassifierJudge | CallableJudge | EndpointJudge | HumanJudge, Field(discriminator="kind")
    ]
    """Who gives the gold reward; endpoint and human have no scale and say which of two answers is better."""
    held_out: Count
    """Prompts kept for the evaluation; no training stage sees them."""
    overlap: Annotated[int, Field(ge=2)]
    """A training text that shares this many consecutive words with a held-out text is dropped."""

    @model_validator(mode="after")
    def _something_to_fit_the_judge_on(self) -> Corpus:
        if self.judge.kind == "fitted" and self.judge.rated is None and self.source.kind != "embedded":
            raise ValueError(
                "judge.rated is null, but only the embedded source brings ratings: expected a table of text and rating"
            )
        return self


class EmbeddedSource(Section):
    """Movie snippets with individual human ratings (vaderSentiment 3.3.2 source distribution)."""

    kind: Literal["embedded"]
    prompt_words: Count
    """Opening words of a snippet that make the prompt; the rest is the demonstrated answer."""
    judge_share: OpenFraction
    """Share of the snippets that only the judge sees."""
    demonstrations: Count
    """At most this many demonstrations."""
    prompts: Count
    """Training prompts, for samples and ppo."""
    pairs: Whole
    """Off-policy pairs made from the human ratings."""
    pair_gap: Annotated[float, Field(gt=0, lt=8)]
    """Smallest difference of the two mean ratings (scale -4 to 4) in an off-policy pair."""


Column = Literal[
    "prompt", "answer", "messages", "chosen", "rejected", "text", "rating", "votes", "first", "second", "verdict"
]


class Table(Section):
    """Rows of a JSONL or parquet file (or a glob of them), or of a hub data set, with their column names."""

    path: Text
    """A path below `corpus.data`, or a hub data set id when `hub` is true."""
    hub: bool
    """Whether `path` names a hub data set."""
    split: Text | None
    """Split of a hub data set."""
    columns: dict[Column, Text]
    """Our name -> the column's name in the file."""

    @model_validator(mode="after")
    def _split_of_a_hub_data_set(self) -> Table:
        if self.hub and self.split is None:
            raise ValueError("split is null, but hub is true: a hub data set needs its split, such as train")
        if not self.hub and self.split is not None:
            raise ValueError(f"split is {self.split!r}, but hub is false: a file has none, expected null")
        return self

    @model_validator(mode="after")
    def _below_the_data(self) -> Table:
        if not self.hub and (Path(self.path).is_absolute() or ".." in Path(self.path).parts):
            raise ValueError(f"path is {self.path!r}, expected a path below corpus.data")
        return self

    @model_validator(mode="after")
    def _one_owner_and_name(self) -> Table:
        if self.hub and not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*(@[\w./-]+)?", self.path):
            raise ValueError(f"path is {self.path!r}, but hub is true: expected owner/name or owner/name@revision")
        return self


class FileSource(Section):
    """The user's own rows."""

    kind: Literal["files"]
    demonstrations: Table
    """prompt and answer, or messages (the last assistant turn is the answer)."""
    prompts: Table | None
    """prompt, or messages; null: the demonstrations' prompts."""
    held_out: Table | None
    """prompt, or messages; null: split off the prompts by a hash of their text."""
    preferences: Table | None
    """prompt, chosen and rejected: off-policy pairs. Also votes, where several people compared the two: a list of
    chosen, rejected and tie (null: did not vote), whose majority then says which answer is the chosen one.
    No prompt where the two are whole chats or (reward) whole texts."""

    @model_validator(mode="after")
    def _columns_of_demonstrations(self) -> FileSource:
        _require(self.demonstrations, "demonstrations", {"messages"}, {"prompt", "answer"})
        return self

    @model_validator(mode="after")
    def _columns_of_prompts(self) -> FileSource:
        _require(self.prompts, "prompts", {"prompt"}, {"messages"})
        return self

    @model_validator(mode="after")
    def _columns_of_held_out(self) -> FileSource:
        _require(self.held_out, "held_out", {"prompt"}, {"messages"})
        return self

    @model_validator(mode="after")
    def _columns_of_preferences(self) -> FileSource:
        _require(self.preferences, "preferences", *_PAIRS)
        return self


_PAIRS = tuple({"chosen", "rejected", *prompt, *votes} for prompt in (["prompt"], []) for votes in ([], ["votes"]))


class FittedJudge(Section):
    """TF-IDF and ridge regression on rated texts."""

    kind: Literal["fitted"]
    rated: Table | None
    """text and rating; null with the embedded source, which brings its own."""
    ridge: Positive
    """Strength of the L2 penalty."""

    @model_validator(mode="after")
    def _columns_of_rated(self) -> FittedJudge:
        _require(self.rated, "rated", {"text", "rating"})
        return self


class ClassifierJudge(Section):
    """A Hugging Face sequence classifier: log-odds of `label` (or the only output)."""

    kind: Literal["classifier"]
    model: Text
    """A folder below `corpus.data`, or a hub id (`id@revision`)."""
    label: Text | None
    """The label that means "good"; null for a model with one output."""


class CallableJudge(Section):
    """A function of the user's: (prompts, answers) -> one score each, higher is better."""

    kind: Literal["callable"]
    function: Annotated[str, Field(pattern=r"^[\w./-]+:\w+$")]
    """path/to/file.py:name (below `corpus.data`), or package.module:name."""


class EndpointJudge(Section):
    """A language model behind an OpenAI-compatible chat endpoint that compares two answers, asked in both orders.

    Replies are kept in .rlhf/verdicts by everything that decides them, so a rerun asks nothing. A win rate costs two
    requests per held-out prompt, policy and baseline answer: see baseline.answers.
    """

    kind: Literal["endpoint"]
    url: str
    """Up to and with the version, such as https://host/v1; requests go to its /chat/completions."""
    model: str
    """The model's name at the endpoint."""
    key_variable: str | None
    """Name of the environment variable that holds the API key, which is never stored; null: no key is sent."""
    template: str | None
    """The question, with {prompt}, {first} and {second}, to be answered [[A]], [[B]] or [[C]]; null: ours."""
    options: dict[str, bool | int | float | str]
    """More of the request's body, such as {temperature: 0, max_tokens: 16}."""
    requests_per_minute: Positive
    """Requests are spaced to stay below it."""
    parallel: Count
    """Requests under way at once."""
    timeout: Positive
    """Seconds for one request."""
    attempts: Count
    """Tries of one request: 408, 409, 429, 5xx, timeouts and broken connections are tried again, after Retry-After."""

    # What is refused here is not shown: somebody may have put the key itself there.
    @model_validator(mode="after")
    def _a_plain_url(self) -> EndpointJudge:
        parts = urlsplit(self.url)
        if parts.username or parts.password:
            raise ValueError("url holds a user or password: give the key through key_variable")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("url is not http(s)://host/path without query")
        return self

    @model_validator(mode="after")
    def _the_name_of_a_variable(self) -> EndpointJudge:
        if self.key_variable is not None and not re.fullmatch(r"[A-Z][A-Z0-9_]*", self.key_variable):
            raise ValueError("key_variable is not the name of an environment variable, such as OPENAI_API_KEY")
        return self

    @model_validator(mode="after")
    def _options_of_the_user(self) -> EndpointJudge:
        if taken := sorted(self.options.keys() & {"model", "messages", "n", "stream"}):
            raise ValueError(f"options holds {', '.join(taken)}, which the judge sets itself")
        return self


class HumanJudge(Section):
    """Verdicts of people on pairs of answers, matched by their texts in either order.

    A first run without the verdicts it needs names the file to which it wrote the pairs that wait for one.
    """

    kind: Literal["human"]
    verdicts: Table
    """prompt, first, second and verdict (first, second or tie); several verdicts on one pair count by their mean."""

    @model_validator(mode="after")
    def _columns_of_verdicts(self) -> HumanJudge:
        _require(self.verdicts, "verdicts", {"prompt", "first", "second", "verdict"})
        return self


def _require(table: Table | None, key: str, *wanted: set[str]) -> None:
    """Raise ValueError unless the table's columns are exactly one of `wanted`: another one would be read by nobody."""
    if table is not None and set(table.columns) not in wanted:
        given = ", ".join(sorted(table.columns)) or "nothing"
        expected = " or ".join("{" + ", ".join(sorted(names)) + "}" for names in wanted)
        raise ValueError(f"{key}.columns names {given}, expected {expected}")

"""Where model, rows and judge come from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tasks.runtime.sections.section import Count, OpenFraction, Positive, Section, Whole


class Base(Section):
    """The model that everything starts from."""

    model: str
    """embedded (SmolLM2-135M-Instruct from the package index), tiny (random weights), a hub id, or a folder."""
    revision: str | None
    """Commit, tag or branch of a hub id."""
    track: Path
    """A file or folder whose change reruns this stage; for a model folder, the folder itself."""


class Corpus(Section):
    """Demonstrations, prompts, held-out prompts, off-policy pairs and the judge."""

    data: Path
    """Folder whose change reruns this stage: the user's files, or the pins of the embedded downloads."""
    source: Annotated[EmbeddedSource | FileSource, Field(discriminator="kind")]
    """Where the rows come from."""
    judge: Annotated[FittedJudge | ClassifierJudge | CallableJudge, Field(discriminator="kind")]
    """Who gives the gold reward."""
    held_out: Count
    """Prompts kept for the evaluation; no training stage sees them."""
    overlap: Annotated[int, Field(ge=2)]
    """A training text that shares this many consecutive words with a held-out text is dropped."""


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
    pair_gap: Positive
    """Smallest difference of the two mean ratings (scale -4 to 4) in an off-policy pair."""


class Table(Section):
    """Rows of a JSONL or parquet file (or a glob of them), or of a hub data set, with their column names."""

    path: str
    """A path below `corpus.data`, or a hub data set id when `hub` is true."""
    hub: bool
    """Whether `path` names a hub data set."""
    split: str | None
    """Split of a hub data set."""
    columns: dict[Literal["prompt", "answer", "messages", "chosen", "rejected", "text", "rating", "votes"], str]
    """Our name -> the column's name in the file."""


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
    chosen, rejected and tie (null: did not vote), whose majority then says which answer is the chosen one."""


class FittedJudge(Section):
    """TF-IDF and ridge regression on rated texts."""

    kind: Literal["fitted"]
    rated: Table | None
    """text and rating; null with the embedded source, which brings its own."""
    ridge: Positive
    """Strength of the L2 penalty."""


class ClassifierJudge(Section):
    """A Hugging Face sequence classifier: log-odds of `label` (or the only output)."""

    kind: Literal["classifier"]
    model: str
    """A folder below `corpus.data`, or a hub id (`id@revision`)."""
    label: str | None
    """The label that means "good"; null for a model with one output."""


class CallableJudge(Section):
    """A function of the user's: (prompts, answers) -> one score each, higher is better."""

    kind: Literal["callable"]
    function: Annotated[str, Field(pattern=r"^[\w./-]+:\w+$")]
    """path/to/file.py:name (below `corpus.data`), or package.module:name."""

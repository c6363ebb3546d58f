"""Where in the input a record stands: file and line of its order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from omnigraph.pipeline.load.stage_split import SplitResult
from omnigraph.pipeline.plan import Split
from omnigraph.pipeline.problems import NO_RECORD, Problem, ProblemLog, line_of, split_of


@dataclass(frozen=True, slots=True)
class Places:
    """The files of one load, and the line at which each split of them begins."""

    splits: Sequence[Split]
    first_lines: dict[int, int]

    @classmethod
    def of(cls, splits: Sequence[Split], results: Sequence[SplitResult]) -> "Places":
        """Lines of earlier splits of a file come first."""
        first_line: dict[int, int] = {}
        passed: dict[str, int] = {}
        for split in splits:
            # A file may be named twice: its first split begins at its first line again.
            first_line[split.number] = passed.get(split.path, 0) if split.start else 0
            passed[split.path] = first_line[split.number] + results[split.number].lines
        return cls(splits, first_line)

    def line(self, order: int) -> int:
        """The line of a record in its file, counted from 1."""
        return self.first_lines[split_of(order)] + line_of(order) + 1

    def file(self, order: int) -> str:
        """How messages call the file of a record."""
        return self.splits[split_of(order)].name

    def located(self, log: ProblemLog) -> ProblemLog:
        """The log with file and line of every problem."""

        def placed(problem: Problem) -> Problem:
            if problem.order == NO_RECORD:
                return problem
            return replace(problem, file=self.file(problem.order), line=self.line(problem.order))

        kept = {kind: [placed(problem) for problem in problems] for kind, problems in log.kept.items()}
        return ProblemLog(kept, dict(log.totals), log.kept_max)

"""Warnings about rules: metrics that nobody logs, texts that cannot be filled. Each is given once.
Tested in tests/alerts/test_engine.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainvitals.alerts.evaluation import Subject, names_of
from trainvitals.alerts.language import metrics, slashed
from trainvitals.alerts.rules import Rule


class RuleProblems:
    """What is wrong with the rules of an engine; taken with `take`."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._texts: list[str] = []
        self._warned: set[str] = set()
        self._unknown: set[tuple[str, str]] = set()
        """Table and name of the metrics that were reported."""
        self._asked: dict[tuple[str, str], list[str]] = {}
        """Which rules ask for a metric, and ..."""
        self._names: dict[tuple[str, str], tuple[str, ...]] = {}
        """... under which names it may be logged."""
        for rule in rules:
            for metric in {metric for node in rule.nodes for metric in metrics(node)}:
                self._asked.setdefault((metric.table, metric.name), []).append(rule.name)
                self._names[(metric.table, metric.name)] = names_of(metric)

    def take(self) -> list[str]:
        taken, self._texts = self._texts, []
        return taken

    def add(self, text: str) -> None:
        """Something that is told whenever it happens."""
        self._texts.append(text)

    def add_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._texts.append(text)

    def report_unknown(self, table: str, subjects: Iterable[Subject]) -> None:
        """Which metrics of this table that rules ask for have not been seen with any of these and are in no table: a
        typing error, or to come."""
        from trainvitals import catalog
        from trainvitals.errors import nearest

        seen = [name for subject in subjects for name, series in subject.series.items() if series.count]
        for (of, name), rules in self._asked.items():
            if of != table or catalog.find(table, name) is not None:
                continue
            own = [rule for rule in self._rules if rule.name in rules and not rule.built_in]
            if not own or not {*self._names[of, name]}.isdisjoint(seen):
                continue
            known = [row.name for row in catalog.TRAINING] + seen
            one = next((found for rule in own if (found := slashed(f"{rule.when} {rule.clear}", name))), None)
            hint = f"; if {one} is a single name, write it in backquotes: `{one}`" if one else ""
            self._unknown.add((of, name))
            self.add_once(
                f"rule '{own[0].name}': no metric '{name}' yet{nearest(name, known)}; the rule starts once it is "
                f"logged{hint}"
            )

    def greet(self, table: str, name: str) -> None:
        """A metric is logged for the first time."""
        if (table, name) in self._unknown:
            rule = next(iter(self._asked.get((table, name), ())), "?")
            self.add_once(f"rule '{rule}': metric '{name}' is now logged; the rule is active")

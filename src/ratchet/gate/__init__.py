"""The gate decides whether a candidate may replace the champion.

rules/           the rules, one in each module: what it measures, its limit, its text
case.py          what a rule may use: the candidate, the champion, the test samples on which both can be compared
significance.py  the test against the champion, and its level at each try
units.py         samples that are no independent proof: groups and copies
verdict.py       the results of all rules together
text.py          the verdict as text

The gate is a pure function of its inputs. It loads no models and moves no aliases.
"""

from ratchet.gate.case import Candidate, Case, Champion
from ratchet.gate.rules import RULES, Rule, RuleResult, reload_rule
from ratchet.gate.significance import Tries
from ratchet.gate.verdict import Verdict, judge

__all__ = ["RULES", "Candidate", "Case", "Champion", "Rule", "RuleResult", "Tries", "Verdict", "judge", "reload_rule"]

"""The gate decides whether a candidate may replace the champion.

rules.py         the rules; each returns its measured values
case.py          what a rule may use: the candidate, the champion, the test samples on which both can be compared
significance.py  the test against the champion, and its level at each try
verdict.py       the result of each rule, and of all together, as data
text.py          the only module that turns a verdict into text

The gate is a pure function of its inputs. It loads no models and moves no aliases.
"""

from ratchet.gate.case import Candidate, Case, Champion
from ratchet.gate.rules import RULES, Rule, judge, reload_rule
from ratchet.gate.significance import Tries
from ratchet.gate.verdict import RuleResult, Verdict

__all__ = ["RULES", "Candidate", "Case", "Champion", "Rule", "RuleResult", "Tries", "Verdict", "judge", "reload_rule"]

"""Search for better settings: which trial is next, on which worker, and which one wins.

    records     a study and its trials
    store       the database: every change is one transaction
    sampling    the next settings, by Optuna
    pruning     which trials end early: rungs, or Optuna's pruners
    scheduler   what a worker does next
    finalists   other seeds of the best trials, and the winner
    front       the Pareto front of several objectives
    importance  which settings decide how good a trial is
    pace        the time that a search still needs

Nothing here trains: `tasks.trial` does.
"""

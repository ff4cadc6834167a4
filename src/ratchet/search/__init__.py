"""Search for better settings: which trial is next, on which worker, and which one wins.

    records      a study and its trials
    optuna_view  trials as Optuna has them
    store        Optuna's storage
    sampling     the next settings, by Optuna's samplers
    pruning      which trials end early, by Optuna's pruners
    scheduler    what a worker does next
    finalists    other seeds of the best trials, and the winner
    front        the Pareto front of several objectives
    importance   which settings decide how good a trial is
    pace         the time that a search still needs

Nothing here trains: `tasks.search_trial` does.
"""

"""Search for better settings: which trial is next, on which worker, and which one wins.

    records      a study and its trials
    optuna_view  trials as Optuna has them, and their Pareto front
    store        Optuna's storage
    sampling     the next settings, by Optuna's samplers
    pruning      which trials end early, by Optuna's pruners
    scheduler    what a worker does next
    finalists    other seeds of the best trials, and the winner
    importance   which settings decide how good a trial is

Nothing here trains: `tasks.search_trial` does.
"""

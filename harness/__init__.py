"""The vocabulary of KVSan and the session that judges: operations, traces, targets, shadow memory, verdicts."""

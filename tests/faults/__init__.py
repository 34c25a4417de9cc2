"""Real faults in real processes, judged by the auditor: ``make faults``."""

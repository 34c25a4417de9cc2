"""What of the run folders may be deleted: nothing that a report, a resumable run or a live attempt needs.

It reads the store and writes only run folders; deletions follow the order of :mod:`paribus.run_folder.checkpoints`.
"""

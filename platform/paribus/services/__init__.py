"""The services around a home folder: MLflow server, scheduler, dashboard; how to start them and whether they work.

`paribus up` starts them on this machine, the compose file in containers. No service trains or reads run folders here.
"""

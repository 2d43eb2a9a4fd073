"""The node agent: runs the pods of one or several nodes as local process groups, and forwards Services to them."""

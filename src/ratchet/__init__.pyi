from commands.api import new as new
from commands.api import open as open

__version__: str

"""The notebook's loggers hold in ranks, whoever has written their classes."""

import logging
import re
import threading

from course_utils import launch
from course_utils.ranks import left_out
from tests.tables import rows


class ReadOnly(logging.StreamHandler):
    """As `logging.lastResort`, whose class dill uses."""

    @property
    def stream(self):  # ty: ignore[incompatible-property-override]
        import sys

        return sys.stderr

    def __init__(self):
        logging.Handler.__init__(self)


class Slots(logging.Filter):
    __slots__ = ("lock",)

    def __init__(self):
        self.lock = threading.Lock()


class Raises(logging.Formatter):
    def __reduce__(self):
        raise ValueError("of its own")


class NotHere(logging.Filter):
    """Cannot be opened again."""

    def __init__(self, word):
        super().__init__()
        self.word = word

    def __setstate__(self, state):
        raise OSError("not in this process")


class NoLevel(logging.Handler):
    def __init__(self, *, page):
        super().__init__()
        self.page = page

    @property
    def level(self):
        raise RuntimeError("no page")

    @level.setter
    def level(self, value):
        pass


class Texts(logging.Handler):
    def __init__(self, where):
        super().__init__()
        self.where = where, threading.Lock()

    def emit(self, record):
        self.where[0].append(record.getMessage())


def formatted(handler, formatter):
    handler.setFormatter(formatter)
    return handler


def filtered(handler, one):
    handler.addFilter(one)
    return handler


HANDLERS = """
handler                                                                   printed
logging.StreamHandler()                                                   epoch 1
ReadOnly()                                                                epoch 1
Texts([])                                                                 epoch 1
logging.NullHandler()                                                     nothing
NoLevel(page=1)                                                           nothing
formatted(Texts([]), logging.Formatter("own %(message)s"))                own epoch 1
formatted(logging.StreamHandler(), Raises("own %(message)s"))             epoch 1
filtered(logging.StreamHandler(), Slots())                                epoch 1
filtered(logging.StreamHandler(), NotHere("a"))                           epoch 1
"""
WITHOUT = """
Ranks do without the NoLevel of logger 4 (RuntimeError: no page).
Ranks do without the Raises of the StreamHandler of logger 6 (ValueError: of its own).
Ranks do without the Slots of the StreamHandler of logger 7 (TypeError: cannot pickle '_thread.lock
Ranks do without the NotHere of the StreamHandler of logger 8 (OSError: not in this process).
"""


def test_handlers_of_anybodys_classes(capsys, monkeypatch):
    monkeypatch.setattr(left_out, "_told", set())
    handlers, printed = zip(*rows(HANDLERS), strict=True)
    loggers = [logging.getLogger(f"{i}") for i in range(len(handlers))]

    def train():
        for i in range(len(handlers)):
            print(f"{i}:")
            logging.getLogger(f"{i}").info("epoch 1")

    for logger, handler in zip(loggers, handlers, strict=True):
        logger.propagate = False
        logger.setLevel(logging.INFO)
        logger.addHandler(eval(handler))
    try:
        run = launch(train, ranks=2, show=False)
    finally:
        for logger in loggers:
            logger.handlers.clear()
            logger.propagate = True
            logger.setLevel(logging.NOTSET)
    found = re.split(r"\d:\n", run.output[1])[1:]
    assert [text.strip() or "nothing" for text in found] == [*printed]
    told = [line for line in capsys.readouterr().out.splitlines() if "root" not in line]  # pytest's
    for line, words in zip(told, WITHOUT.strip().splitlines(), strict=True):
        assert line.startswith(words)


def test_what_ranks_do_without_is_told_once(monkeypatch, capsys):
    monkeypatch.setattr(left_out, "_told", set())
    monkeypatch.setattr(logging, "_logRecordFactory", lambda *args: logging.LogRecord(*args))
    for count in (1, 0):
        assert launch(logging.getLogRecordFactory, ranks=1).results == [logging.LogRecord]
        told = capsys.readouterr().out
        assert told.count("Ranks do without the factory of log records.\n") == count


LIBRARY = """
import logging
class OwnWarning(UserWarning): pass
log = logging.getLogger("a_library")
log.addHandler(logging.StreamHandler())
log.setLevel(logging.WARNING)
log.propagate = False
"""


def test_a_library_that_the_call_imports_does_not_set_its_logger_up_again(tmp_path, kernel):
    (tmp_path / "a_library.py").write_text(LIBRARY)
    answer = kernel.works(f"""
        import warnings
        sys.path.insert(0, {str(tmp_path)!r})
        import a_library
        a_library.log.setLevel("INFO")
        warnings.simplefilter("error", a_library.OwnWarning)
        def train():
            a_library.log.info("once")
            return [one[0] for one in warnings.filters if one[2] is a_library.OwnWarning]
        print(launch(train, ranks=1).results)
        def other(): return "a_library" in sys.modules
        print(launch(other, ranks=1).results)
        del warnings.filters[0]
        sys.path.pop(0)
    """)
    assert answer.text == "[rank 0] once\n[['error']]\n[False]\n"


FORMATTER = """
import logging
class Own(logging.Formatter):
    def format(self, record): return f"own {record.getMessage()}"
"""


def test_a_formatter_may_be_of_a_module_that_sys_path_leads_to(tmp_path, kernel):
    (tmp_path / "own_format.py").write_text(FORMATTER)
    answer = kernel.works(f"""
        import logging
        sys.path.insert(0, {str(tmp_path)!r})
        import own_format
        log = logging.getLogger("with_a_formatter")
        log.addHandler(logging.StreamHandler())
        log.handlers[0].setFormatter(own_format.Own())
        def train(): log.warning("step 1")
        launch(train, ranks=2)
        log.handlers.clear()
        sys.path.pop(0)
    """)
    assert sorted(answer.text.splitlines()) == ["[rank 0] own step 1", "[rank 1] own step 1"]

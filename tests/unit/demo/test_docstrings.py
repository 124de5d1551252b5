import inspect

from tfde.data.pages import Section
from tfde.demo.python_docs import docstring_sections


def test_google_style():
    docstring = inspect.cleandoc(
        """Adds two numbers.

        The second line
        goes on.

        Args:
            x: The first,
                continued.
            y (int): The second.

        Returns:
            The sum.

        Example:

        ```python
        add(1, 2)
        ```
        """
    )
    assert docstring_sections(docstring) == (
        Section("", ("Adds two numbers.", "The second line goes on.")),
        Section("Args", ("x: The first, continued.", "y (int): The second.")),
        Section("Returns", ("The sum.",)),
    )


def test_numpy_style_without_doctests():
    docstring = inspect.cleandoc(
        """
        Sum of elements.

        Parameters
        ----------
        a : array_like
            Elements.
        axis : int, optional
            Axis.

        Examples
        --------
        >>> np.sum([1, 2])
        3

        In words:

        .. versionadded:: 1.7
        """
    )
    assert docstring_sections(docstring) == (
        Section("", ("Sum of elements.",)),
        Section("Parameters", ("a : array_like Elements.", "axis : int, optional Axis.")),
        Section("Examples", ("In words:",)),
    )


def test_lists_and_sentences_that_end_in_a_colon():
    docstring = "One of the following kinds of things:\n- first\n- second\n* third"
    assert docstring_sections(docstring) == (
        Section("", ("One of the following kinds of things:", "- first", "- second", "* third")),
    )


def test_code_alone_is_nothing():
    assert docstring_sections(">>> 1\n1") == ()
    assert docstring_sections("") == ()

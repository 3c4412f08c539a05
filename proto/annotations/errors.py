"""The one error of every annotation decoder."""


class AnnotationError(ValueError):
    """An annotation is in no form this version understands.

    `key` is the annotation, `where` the position inside its value, `problem` the reason.
    """

    def __init__(self, key: str, where: str, problem: str) -> None:
        super().__init__(f"{key}: {where}: {problem}" if where else f"{key}: {problem}")
        self.key = key
        self.where = where
        self.problem = problem

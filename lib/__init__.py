"""The code behind the book: the maths, the models, the trainers and the book engine."""

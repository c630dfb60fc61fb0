"""Answer questions about digits by 40 teachers, privately, until the budget is empty.

No model leaves: what is private are the answers, and there are few of them. A ledger belongs to one
service: remove prediction.dpl* before you run it again.
"""

import math

import dpfy
from dpfy.data import digits
from dpfy.ensembles import train_linear
from dpfy.planning import predictions

source = digits()
x, y = source.train.tensors
budget = {"noise": 8.0, "classes": 10, "epsilon": 3.0, "delta": 1e-5}

planned = predictions(parts=40, **budget)  # before anything is spent
print(f"the budget buys {planned.answers} answers")

records = x.flatten(1).numpy(), y.numpy()
teachers = dpfy.Teachers.fit(train_linear(classes=10), records, parts=40)
service = dpfy.PrivatePredictor(teachers, ledger="prediction.dpl", shape=(64,), **budget)

x, y = source.test.tensors  # public questions
questions = x.flatten(1).numpy()
answers = service.predict_each(questions[: planned.answers])
right = sum(answer == label for answer, label in zip(answers, y.tolist(), strict=False))
try:
    service.predict(questions[-1])
except dpfy.BudgetExhausted:
    print("one more is refused")
epsilon = math.ceil(service.guarantee.claim(1e-5) * 1000) / 1000  # a claim is rounded up
print(f"{right} of {len(answers)} right, epsilon {epsilon:.3f} at delta 1e-5")

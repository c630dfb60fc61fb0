"""Label public digits by the votes of 40 teachers (PATE). Teachers need no gradients.

A ledger belongs to one run: remove votes.dpl* before you run it again.
"""

import math

from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression

import dpfy
from dpfy.data import digits

source = digits()
(private, labels), (x, y) = source.train.tensors, source.test.tensors  # y only measures the student
private, x = private.flatten(1).numpy(), x.flatten(1).numpy()

plan = dpfy.pate(classes=10, parts=40, mechanism="gnmax", answer_noise=8, epsilon=3.0, delta=1e-5)
teachers = dpfy.Teachers.fit(
    lambda subset, seed: LogisticRegression().fit(*subset), (private, labels.numpy()), parts=40
)
asked = KMeans(plan.most_answers, random_state=0).fit(x).transform(x).argmin(axis=0)  # public
found = [-1] * len(x)
for place, label in zip(asked, plan.ask(teachers, x[asked], ledger="votes.dpl"), strict=True):
    found[place] = label
student = dpfy.semi_supervised(x, found, classes=10)

epsilon = math.ceil(plan.guarantee.claim(1e-5) * 1000) / 1000  # a claim is rounded up
accuracy = (student.predict(x) == y).float().mean()
print(f"{len(asked)} labels, epsilon {epsilon:.3f} at delta 1e-5, public accuracy {accuracy:.1%}")

"""scikit-learn: choose the number of bits by cross-validation, and classify by a graph of approximate neighbours."""

from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

from cbeindex.sklearn import CBENeighborsTransformer, CirculantTransformer

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)

# Signs of circulant projections are features that a linear model can use.
pipeline = make_pipeline(CirculantTransformer(output="signs"), LogisticRegression(max_iter=1_000))
search = GridSearchCV(pipeline, {"circulanttransformer__n_bits": [16, 64, 256]}, cv=3).fit(X_train, y_train)
print("bits", search.best_params_["circulanttransformer__n_bits"], "accuracy", round(search.score(X_test, y_test), 3))

# A graph of neighbours, which the classifier takes as it is.
neighbours = make_pipeline(CBENeighborsTransformer(n_neighbors=8), KNeighborsClassifier(5, metric="precomputed"))
neighbours.fit(X_train, y_train)
print("neighbours, accuracy", round(neighbours.score(X_test, y_test), 3))

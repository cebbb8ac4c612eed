"""Estimators of scikit-learn, LightGBM and XGBoost, fitted to random tables, converted by skl2onnx and onnxmltools."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

N, WIDTH = 90, 5
Made = Callable[[Path], dict[str, np.ndarray]]
# module: classes with their arguments; after each what it is fitted to: c2, c3 and m3 (classes), r (a number), p (a
# count), t (nothing), i (integers), n (numbers with gaps), s (classes).
SKLEARN = {
    "linear_model": (
        "LogisticRegression()c2 LogisticRegression()c3 LinearRegression()r Ridge()r Lasso(alpha=0.1)r "
        "ElasticNet(alpha=0.1)r SGDClassifier()c3 SGDRegressor()r Perceptron()c3 RidgeClassifier()c3 "
        "BayesianRidge()r HuberRegressor()r RANSACRegressor()r PoissonRegressor()p TweedieRegressor(power=1)p "
        "LogisticRegressionCV()c2"
    ),
    "svm": (
        "SVC()c2 SVC(probability=True)c2 SVC(probability=True)c3 SVC(kernel='poly')c3 SVC(kernel='sigmoid')c2 "
        "SVC(kernel='linear',probability=True)c3 NuSVC(probability=True)c3 SVR()r SVR(kernel='poly')r NuSVR()r "
        "LinearSVC()c3 LinearSVR()r OneClassSVM()t"
    ),
    "tree": (
        "DecisionTreeClassifier(max_depth=4)c3 DecisionTreeRegressor(max_depth=4)r "
        "ExtraTreeClassifier(max_depth=4)c2"
    ),
    "ensemble": (
        "RandomForestClassifier(8,max_depth=4)c3 RandomForestRegressor(8,max_depth=4)r "
        "ExtraTreesClassifier(8,max_depth=4)c2 GradientBoostingClassifier(n_estimators=8)c2 "
        "GradientBoostingClassifier(n_estimators=8)c3 GradientBoostingRegressor(n_estimators=8)r "
        "HistGradientBoostingClassifier(max_iter=8)c2 HistGradientBoostingRegressor(max_iter=8)r "
        "AdaBoostClassifier(n_estimators=5)c3 AdaBoostRegressor(n_estimators=5)r "
        "BaggingClassifier(n_estimators=4)c3 BaggingRegressor(n_estimators=4)r IsolationForest(n_estimators=8)t"
    ),
    "neighbors": (
        "KNeighborsClassifier(3)c3 KNeighborsRegressor(3)r RadiusNeighborsRegressor(4.0)r "
        "KNeighborsTransformer(n_neighbors=3)t LocalOutlierFactor(novelty=True)t"
    ),
    "naive_bayes": "GaussianNB()c3 BernoulliNB()c3 MultinomialNB()m3 ComplementNB()m3",
    "neural_network": "MLPClassifier((8,),max_iter=30)c3 MLPRegressor(hidden_layer_sizes=(8,),max_iter=30)r",
    "gaussian_process": "GaussianProcessRegressor()r GaussianProcessClassifier()c2",
    "preprocessing": (
        "StandardScaler()t MinMaxScaler()t MaxAbsScaler()t RobustScaler()t Normalizer()t Binarizer()t "
        "PolynomialFeatures(2)t PowerTransformer()t QuantileTransformer(n_quantiles=20)t "
        "KBinsDiscretizer(3,encode='ordinal')t OneHotEncoder()i OrdinalEncoder()i"
    ),
    "decomposition": "PCA(3)t TruncatedSVD(3)t KernelPCA(3,kernel='rbf')t IncrementalPCA(3)t",
    "discriminant_analysis": "LinearDiscriminantAnalysis()c3 QuadraticDiscriminantAnalysis()c3",
    "cluster": "KMeans(3,n_init=2)t MiniBatchKMeans(3,n_init=2)t",
    "mixture": "GaussianMixture(2)t BayesianGaussianMixture(n_components=2)t",
    "feature_selection": "VarianceThreshold(0.5)t SelectKBest(k=3)s",
    "impute": "SimpleImputer()n KNNImputer()n",
    "random_projection": "GaussianRandomProjection(3)t",
    "multiclass": "OneVsRestClassifier(LogisticRegression())c3 OneVsOneClassifier(LogisticRegression())c3",
    "calibration": "CalibratedClassifierCV(LogisticRegression(),cv=2)c3",
    "cross_decomposition": "PLSRegression(2)r",
}
BOOSTERS = {
    "lightgbm": (
        "LGBMClassifier(n_estimators=6,verbose=-1)c2 LGBMClassifier(n_estimators=6,verbose=-1)c3 "
        "LGBMRegressor(n_estimators=6,verbose=-1)r "
        "LGBMClassifier(n_estimators=6,verbose=-1,boosting_type='dart')c3 "
        "LGBMRegressor(n_estimators=6,verbose=-1,objective='poisson')p "
        "LGBMClassifier(n_estimators=6,verbose=-1,boosting_type='rf',bagging_freq=1,bagging_fraction=0.6)c2 "
        "LGBMRegressor(n_estimators=6,verbose=-1,objective='huber')r "
        "LGBMClassifier(n_estimators=6,verbose=-1,zero_as_missing=True)c2"
    ),
    "xgboost": (
        "XGBClassifier(n_estimators=6,max_depth=3)c2 XGBClassifier(n_estimators=6,max_depth=3)c3 "
        "XGBRegressor(n_estimators=6,max_depth=3)r XGBRFRegressor(n_estimators=6,max_depth=3)r "
        "XGBRFClassifier(n_estimators=6,max_depth=3)c2 XGBRegressor(n_estimators=6,objective='count:poisson')p"
    ),
}


def _table(kind: str) -> tuple[np.ndarray, np.ndarray | None]:
    rng = np.random.default_rng(len(kind))
    x = rng.standard_normal((N, WIDTH)).astype(np.float32)
    score = x[:, 0] - 0.7 * x[:, 1] ** 2 + 0.3 * x[:, 2]
    if kind == "i":
        return rng.integers(0, 4, (N, WIDTH)), None
    if kind == "n":
        x[rng.random(x.shape) < 0.1] = np.nan
    if kind[0] in "cms":
        classes = int(kind[1:] or 3)
        y = np.searchsorted(np.quantile(score, np.linspace(0, 1, classes + 1)[1:-1]), score)
        return (np.abs(x) if kind[0] == "m" else x), y
    return x, {"r": score, "p": np.round(np.exp(np.clip(score, -2, 2)))}.get(kind)


WORDS = ["red", "green", "blue", "a dog", "the cat, and a bird"]


def pipelines() -> dict[str, Made]:
    """Pipelines of scikit-learn on strings, on doubles, and with classifiers that give arrays."""
    made: dict[str, Made] = {}
    steps = {
        "onehot": "OneHotEncoder(sparse_output=False)", "ordinal": "OrdinalEncoder()", "target": "TargetEncoder(cv=2)",
        "tfidf": "TfidfVectorizer()", "counts": "CountVectorizer(ngram_range=(1,2))", "label": "LabelEncoder()",
        "binarizer": "LabelBinarizer()", "chars": "CountVectorizer(analyzer='char')",
    }  # fmt: skip
    for name, call in steps.items():
        made[f"strings-{name}"] = _text_writer(call, name)
    for call in ("StandardScaler()", "LogisticRegression()", "SVC(probability=True)", "RandomForestClassifier(6)",
                 "GaussianNB()", "Ridge()", "PCA(2)", "KNeighborsRegressor(3)"):  # fmt: skip
        made[f"doubles-{call}"] = _plain_writer(call, np.float64, {})
    for call in (
        "LogisticRegression()",
        "SVC(probability=True)",
        "GradientBoostingClassifier(n_estimators=5)",
    ):
        for options in ({"zipmap": False}, {"zipmap": "columns"}, {"raw_scores": True, "zipmap": False}):
            made[f"{call}-{'-'.join(f'{k}={v}' for k, v in options.items())}"] = _plain_writer(
                call, np.float32, options
            )
    return made


def _scope() -> dict[str, Any]:
    scope: dict[str, Any] = {}
    for module in ("linear_model", "svm", "ensemble", "naive_bayes", "preprocessing", "decomposition", "neighbors",
                   "feature_extraction.text"):  # fmt: skip
        scope |= vars(importlib.import_module(f"sklearn.{module}"))
    return scope


def _text_writer(call: str, name: str) -> Made:
    def write(path: Path) -> dict[str, np.ndarray]:
        skl2onnx = importlib.import_module("skl2onnx")
        types = importlib.import_module("skl2onnx.common.data_types")
        rng = np.random.default_rng(0)
        table = rng.choice(WORDS, (40, 2))
        flat = name in ("tfidf", "counts", "label", "binarizer", "chars")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            x = table[:, 0] if flat else table
            fitted = eval(call, _scope()).fit(x, *([rng.integers(0, 2, 40)] if name == "target" else []))
            kind = types.StringTensorType([None] if flat else [None, 2])
            proto = skl2onnx.convert_sklearn(
                fitted, initial_types=[("x", kind)], target_opset={"": 21, "ai.onnx.ml": 3}
            )
        path.write_bytes(proto.SerializeToString())
        return {"x": x[:9]}

    return write


def _plain_writer(call: str, dtype: Any, options: dict[str, Any]) -> Made:
    def write(path: Path) -> dict[str, np.ndarray]:
        skl2onnx = importlib.import_module("skl2onnx")
        types = importlib.import_module("skl2onnx.common.data_types")
        x, y = _table("c3")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = eval(call, _scope()).fit(x, y)
            kinds = types.DoubleTensorType if dtype == np.float64 else types.FloatTensorType
            proto = skl2onnx.convert_sklearn(
                fitted, initial_types=[("x", kinds([None, WIDTH]))], options={id(fitted): options} if options else None,
                target_opset={"": 21, "ai.onnx.ml": 3},
            )  # fmt: skip
        path.write_bytes(proto.SerializeToString())
        return {"x": x[:17].astype(dtype)}

    return write


def estimators(families: dict[str, str], package: str = "") -> dict[str, Made]:
    """Each estimator by a name, as a function that writes its file and gives what it is fed with."""
    made: dict[str, Made] = {}
    for module, text in families.items():
        for word in text.split():
            call, kind = word[: word.rindex(")") + 1], word[word.rindex(")") + 1 :]
            made[f"{call}-{kind}".replace("/", "_")] = _writer(package or module, module, call, kind)
    return made


def _writer(package: str, module: str, call: str, kind: str) -> Made:
    def write(path: Path) -> dict[str, np.ndarray]:
        x, y = _table(kind)
        scope: dict[str, Any] = dict(vars(importlib.import_module("sklearn.linear_model")))
        scope |= vars(importlib.import_module(f"sklearn.{module}" if package == "sklearn" else module))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = eval(call, scope).fit(x, y)  # a constructor written above
            proto = _converted(package, fitted, x, kind)
        path.write_bytes(proto.SerializeToString())
        return {"x": x[:17]}

    return write


def _converted(package: str, fitted: Any, x: np.ndarray, kind: str) -> Any:
    if package == "sklearn":
        skl2onnx = importlib.import_module("skl2onnx")
        types = importlib.import_module("skl2onnx.common.data_types")
        kinds = types.Int64TensorType if kind == "i" else types.FloatTensorType
        return skl2onnx.convert_sklearn(
            fitted, initial_types=[("x", kinds([None, WIDTH]))], target_opset={"": 21, "ai.onnx.ml": 3}
        )
    tools = importlib.import_module("onnxmltools")
    types = importlib.import_module("onnxmltools.convert.common.data_types")
    return getattr(tools, f"convert_{package}")(
        fitted, initial_types=[("x", types.FloatTensorType([None, WIDTH]))], target_opset=15
    )

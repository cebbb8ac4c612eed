"""Where the builders of operators are: a model imports the modules of its own operators.

`tests/onnx/test_table.py` checks the table against the modules."""

from __future__ import annotations

from functools import cache
from importlib import import_module

ML = "ai.onnx.ml"
MICROSOFT = "com.microsoft"
_DOMAINS = {"contrib": MICROSOFT, "ml": ML, "ops": ""}
# The modules of rlx.onnx that register builders, each with its operators: of the domain that its folder is for, or
# domain:operator.
_MODULES = {
    "contrib.activation": "BiasAdd BiasGelu BiasSplitGelu FastGelu Gelu QuickGelu",
    "contrib.attention": "Attention MultiHeadAttention RotaryEmbedding",
    "contrib.grouped_attention": "GroupQueryAttention",
    "contrib.image": "GroupNorm NhwcConv SkipGroupNorm",
    "contrib.linear": "FusedConv FusedGemm FusedMatMul FusedMatMulActivation GemmFastGelu TransposeMatMul",
    "contrib.norm": """
        :SimplifiedLayerNormalization EmbedLayerNormalization SimplifiedLayerNormalization SkipLayerNormalization
        SkipSimplifiedLayerNormalization""",
    "contrib.quant.attention": "QAttention",
    "contrib.quant.blocks": "GatherBlockQuantized MatMulBnb4 MatMulNBits",
    "contrib.quant.elementwise": """
        DequantizeLinear QLinearAdd QLinearConcat QLinearLeakyRelu QLinearMul QLinearSigmoid QLinearSoftmax
        QLinearWhere QuantizeLinear""",
    "contrib.quant.embedding": "QEmbedLayerNormalization",
    "contrib.quant.lstm": "DynamicQuantizeLSTM",
    "contrib.quant.matmul": "DynamicQuantizeMatMul MatMulInteger16 MatMulIntegerToFloat QGemm QLinearConv",
    "contrib.quant.pool": "NhwcMaxPool QLinearAveragePool QLinearGlobalAveragePool QLinearReduceMean",
    "contrib.text": "Tokenizer",
    "ml.features": """
        ArrayFeatureExtractor Binarizer FeatureVectorizer Imputer LinearClassifier LinearRegressor Normalizer Scaler""",
    "ml.labels": "CategoryMapper LabelEncoder OneHotEncoder ZipMap",
    "ml.support": "SVMClassifier SVMRegressor",
    "ml.tree": "TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor",
    "ops.arithmetic": "Add BitShift BitwiseAnd BitwiseOr BitwiseXor Clip Div Max Mean Min Mod Mul Pow Sub Sum",
    "ops.attention": "Attention CausalConvWithState LinearAttention RotaryEmbedding ai.onnx.preview:FlexAttention",
    "ops.cast": "BitCast Cast CastLike",
    "ops.conv": "Col2Im Conv ConvInteger ConvTranspose MaxUnpool",
    "ops.elementwise": """
        Abs Acos Acosh And Asin Asinh Atan Atanh BitwiseNot Ceil Celu Cos Cosh Dropout Elu Equal Erf Exp Floor Gelu
        Greater GreaterOrEqual HardSigmoid HardSwish IsInf IsNaN LeakyRelu Less LessOrEqual Log Mish Neg Not Or
        PRelu Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt SwiGLU Swish Tan Tanh
        ThresholdedRelu Where Xor""",
    "ops.experimental": "Affine Crop ImageScaler ParametricSoftplus Scale ScaledTanh",
    "ops.fill": "Constant ConstantOfShape EyeLike OneHot Range Shape Size Trilu",
    "ops.index": """
        Compress Gather GatherElements GatherND NonMaxSuppression NonZero Scatter ScatterElements ScatterND
        TensorScatter TfIdfVectorizer Unique""",
    "ops.legacy": "Add And BatchNormalization Div Dropout Equal Greater Less Mul Or PRelu Pow Reshape Sub Xor",
    "ops.linalg": "Det Einsum Gemm MatMul",
    "ops.loss": "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
    "ops.movement": """
        CenterCropPad Concat DepthToSpace DynamicSlice Expand Flatten Pad Reshape ReverseSequence Slice SpaceToDepth
        Split Squeeze Tile Transpose Unsqueeze""",
    "ops.norm": """
        BatchNormalization GroupNormalization InstanceNormalization LRN LayerNormalization MeanVarianceNormalization
        RMSNormalization""",
    "ops.pool": "AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool",
    "ops.quant": "DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearConv QLinearMatMul QuantizeLinear",
    "ops.random": "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
    "ops.recurrent": "GRU LSTM RNN",
    "ops.reduce": """
        ArgMax ArgMin CumProd CumSum Hardmax LogSoftmax LpNormalization ReduceL1 ReduceL2 ReduceLogSum
        ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Softmax TopK""",
    "ops.resize": "AffineGrid GridSample Resize Upsample",
    "ops.sample": "DeformConv MaxRoiPool RoiAlign",
    "ops.sequence": """
        ConcatFromSequence Identity Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct
        SequenceEmpty SequenceErase SequenceInsert SequenceLength SplitToSequence""",
    "ops.signal": "BlackmanWindow DFT HammingWindow HannWindow MelWeightMatrix STFT",
    "ops.text": "RegexFullMatch StringConcat StringNormalizer StringSplit",
    "ops.training": """
        ai.onnx.preview.training:Adagrad ai.onnx.preview.training:Adam ai.onnx.preview.training:Gradient
        ai.onnx.preview.training:Momentum""",
}


def _places() -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for module, words in _MODULES.items():
        for word in words.split():
            domain, named, name = word.rpartition(":")
            key = domain if named else _DOMAINS[module.partition(".")[0]], name
            found.setdefault(key, []).append(f"rlx.onnx.{module}")
    return found


PLACES = _places()  # the modules that register an operator, by its domain and name


@cache
def import_modules(domain: str, name: str) -> None:
    """Imports the modules that register an operator; does nothing for one that has none."""
    for module in PLACES.get((domain, name), ()):
        import_module(module)

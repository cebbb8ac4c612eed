// AB names the storage of a product's operands: TA (also the result's) and TB.
#define A_f32_f32 f32
#define A_f32_f16 f32
#define A_f32_bf16 f32
#define A_f16_f16 f16
#define A_bf16_bf16 bf16
#define B_f32_f32 f32
#define B_f32_f16 f16
#define B_f32_bf16 bf16
#define B_f16_f16 f16
#define B_bf16_bf16 bf16
#define TA RLX_JOIN(A_, AB)
#define TB RLX_JOIN(B_, AB)

#include "dynatrain/trainer/kernels.h"

#include <cmath>
#include <cstring>

namespace dynatrain::trainer {
namespace {

// Sums of products in eight fixed lanes, so that the compiler may use vectors and the bits stay.
float Dot(const float* a, const float* b, int64_t n) {
  float lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) lanes[j] += a[i + j] * b[i + j];
  }
  float sum = 0;
  for (; i < n; ++i) sum += a[i] * b[i];
  for (const float lane : lanes) sum += lane;
  return sum;
}

// (first, second) of each pair of halves turned by the position's angles; sign -1 turns back.
void Rotate(const float* from, const float* cos, const float* sin, float sign, int64_t half,
            float* to) {
  for (int64_t i = 0; i < half; ++i) {
    to[i] = from[i] * cos[i] - from[half + i] * (sign * sin[i]);
  }
  for (int64_t i = 0; i < half; ++i) {
    to[half + i] = from[half + i] * cos[i] + from[i] * (sign * sin[i]);
  }
}

// Calls visit(qkv row, head row, angle row, is_value) for every (batch, position, group, head of
// group).
template <class Visit>
void ForEachHead(const AttentionShape& s, Visit visit) {
  const int64_t heads = s.per_group + 2;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t t = 0; t < s.seq; ++t) {
      for (int64_t g = 0; g < s.groups; ++g) {
        const int64_t row = ((b * s.seq + t) * s.groups + g) * heads;
        const int64_t group = b * s.groups + g;
        for (int64_t h = 0; h < s.per_group; ++h) {
          visit(row + h, 'q', (group * s.per_group + h) * s.seq + t, t);
        }
        visit(row + s.per_group, 'k', group * s.seq + t, t);
        visit(row + s.per_group + 1, 'v', group * s.seq + t, t);
      }
    }
  }
}

}  // namespace

void RmsNormForward(const float* x, const float* weight, float eps, int64_t rows, int64_t width,
                    float* y, float* inv_rms) {
  for (int64_t t = 0; t < rows; ++t) {
    const float* in = x + t * width;
    float* out = y + t * width;
    const float r = 1.0f / std::sqrt(Dot(in, in, width) / static_cast<float>(width) + eps);
    inv_rms[t] = r;
    for (int64_t c = 0; c < width; ++c) out[c] = in[c] * r * weight[c];
  }
}

void RmsNormBackward(const float* dy, const float* x, const float* weight, const float* inv_rms,
                     int64_t rows, int64_t width, float* dx, float* dweight) {
  for (int64_t t = 0; t < rows; ++t) {
    const float* g = dy + t * width;
    const float* in = x + t * width;
    float* out = dx + t * width;
    const float r = inv_rms[t];
    for (int64_t c = 0; c < width; ++c) out[c] = g[c] * weight[c];
    // d/dx of x * r: r * (gw - x * r^2 * mean(gw * x)).
    const float mean = Dot(out, in, width) / static_cast<float>(width) * r * r;
    for (int64_t c = 0; c < width; ++c) out[c] = r * (out[c] - in[c] * mean);
    if (dweight != nullptr) {
      for (int64_t c = 0; c < width; ++c) dweight[c] += g[c] * (in[c] * r);
    }
  }
}

void SplitHeads(const AttentionShape& shape, const float* qkv, const float* cos, const float* sin,
                float* q, float* k, float* v) {
  const int64_t d = shape.head_dim, half = d / 2;
  ForEachHead(shape, [&](int64_t from, char part, int64_t to, int64_t t) {
    const float* in = qkv + from * d;
    if (part == 'v') {
      std::memcpy(v + to * d, in, sizeof(float) * static_cast<size_t>(d));
    } else {
      Rotate(in, cos + t * half, sin + t * half, 1.0f, half, (part == 'q' ? q : k) + to * d);
    }
  });
}

void MergeHeads(const AttentionShape& shape, const float* q, const float* k, const float* v,
                const float* cos, const float* sin, float* qkv) {
  const int64_t d = shape.head_dim, half = d / 2;
  ForEachHead(shape, [&](int64_t to, char part, int64_t from, int64_t t) {
    float* out = qkv + to * d;
    if (part == 'v') {
      std::memcpy(out, v + from * d, sizeof(float) * static_cast<size_t>(d));
    } else {
      Rotate((part == 'q' ? q : k) + from * d, cos + t * half, sin + t * half, -1.0f, half, out);
    }
  });
}

}  // namespace dynatrain::trainer

// The models' kernels for CPUs: an LSTM layer's recurrence, and 3x3 convolutions by Winograd's algorithm. They work on
// one thread, since whoever calls them trains one chunk of devices per core, and need torch's headers alone.
//
// Lanes come first everywhere. Rows are padded to whole vectors in buffers of a kernel's own, so that only the copies
// at its edges know tails.

#include <algorithm>
#include <cstring>
#include <tuple>
#include <vector>

#include <ATen/cpu/vec/vec.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

namespace {

using torch::stable::Tensor;
using std::int64_t;

template <class T> using Vec = at::vec::Vectorized<T>;

template <class T> int64_t padded(int64_t n) {
  return (n + Vec<T>::size() - 1) / Vec<T>::size() * Vec<T>::size();
}

template <class T> Vec<T> load(const T* from, int64_t left) {  // zeros beyond what is left
  return left >= Vec<T>::size() ? Vec<T>::loadu(from) : Vec<T>::loadu(from, left);
}

template <class T> void store(const Vec<T>& value, T* to, int64_t left) {
  if (left >= Vec<T>::size()) value.store(to); else value.store(to, left);
}

// ---- products of small matrices ------------------------------------------------------------------------------------

// C [M, NV vectors] = or += A [M, K] B [K, NV vectors]; A by any two strides.
template <class T, int M, int NV, bool ADD>
inline void tile(int64_t K, const T* a, int64_t am, int64_t ak, const T* b, int64_t bk, T* c, int64_t cm) {
  constexpr int W = Vec<T>::size();
  Vec<T> sum[M][NV];
  for (int m = 0; m < M; m++)
    for (int v = 0; v < NV; v++) sum[m][v] = ADD ? Vec<T>::loadu(c + m * cm + v * W) : Vec<T>(T(0));
  for (int64_t k = 0; k < K; k++) {
    Vec<T> right[NV];
    for (int v = 0; v < NV; v++) right[v] = Vec<T>::loadu(b + k * bk + v * W);
    for (int m = 0; m < M; m++) {
      const Vec<T> left(a[m * am + k * ak]);
      for (int v = 0; v < NV; v++) sum[m][v] = at::vec::fmadd(left, right[v], sum[m][v]);
    }
  }
  for (int m = 0; m < M; m++)
    for (int v = 0; v < NV; v++) sum[m][v].store(c + m * cm + v * W);
}

template <class T, int NV, bool ADD>
void panel(int64_t M, int64_t K, const T* a, int64_t am, int64_t ak, const T* b, int64_t bk, T* c, int64_t cm) {
  constexpr int MOST = sizeof(Vec<T>) == 64 ? 8 : 4;  // as many sums as there are registers for
  int64_t m = 0;
  for (; m + MOST <= M; m += MOST) tile<T, MOST, NV, ADD>(K, a + m * am, am, ak, b, bk, c + m * cm, cm);
  if (m + 4 <= M) tile<T, 4, NV, ADD>(K, a + m * am, am, ak, b, bk, c + m * cm, cm), m += 4;
  if (m + 2 <= M) tile<T, 2, NV, ADD>(K, a + m * am, am, ak, b, bk, c + m * cm, cm), m += 2;
  if (m < M) tile<T, 1, NV, ADD>(K, a + m * am, am, ak, b, bk, c + m * cm, cm);
}

// C [M, N] = or += A [M, K] B [K, N]; N is whole vectors.
template <class T, bool ADD>
void product(int64_t M, int64_t N, int64_t K, const T* a, int64_t am, int64_t ak, const T* b, int64_t bk, T* c,
             int64_t cm) {
  constexpr int W = Vec<T>::size();
  int64_t n = 0;
  for (; n + 2 * W <= N; n += 2 * W) panel<T, 2, ADD>(M, K, a, am, ak, b + n, bk, c + n, cm);
  if (n < N) panel<T, 1, ADD>(M, K, a, am, ak, b + n, bk, c + n, cm);
}

// ---- the recurrence of an LSTM layer -------------------------------------------------------------------------------

template <class T> Vec<T> sigmoid(const Vec<T>& x) {
  const Vec<T> one(T(1));
  return one / (one + x.neg().exp());
}

template <class T> Vec<T> tanh(const Vec<T>& x) {  // of sigmoids, which cost less
  const Vec<T> two(T(2));
  return two * sigmoid<T>(two * x) - Vec<T>(T(1));
}

// projected [B, T, 4H], weight [4H, H] -> hidden [B, T, H], gates [B, T, 4H], cells [B, T, H]
template <class T>
void lstm_lane(int64_t B, int64_t S, int64_t H, const T* projected, const T* weight, T* hidden, T* gates, T* cells) {
  constexpr int W = Vec<T>::size();
  const int64_t P = padded<T>(H), Q = 4 * P;
  std::vector<T> across(H * Q, T(0)), z(B * Q, T(0)), h(B * P, T(0)), c(B * P, T(0));
  for (int64_t g = 0; g < 4; g++)
    for (int64_t j = 0; j < H; j++)
      for (int64_t k = 0; k < H; k++) across[k * Q + g * P + j] = weight[(g * H + j) * H + k];
  for (int64_t t = 0; t < S; t++) {
    for (int64_t b = 0; b < B; b++)
      for (int64_t g = 0; g < 4; g++)
        std::memcpy(&z[b * Q + g * P], projected + ((b * S + t) * 4 + g) * H, H * sizeof(T));
    product<T, true>(B, Q, t > 0 ? H : 0, h.data(), P, 1, across.data(), Q, z.data(), Q);
    for (int64_t b = 0; b < B; b++) {
      T *to = gates + (b * S + t) * 4 * H, *cell = cells + (b * S + t) * H, *out = hidden + (b * S + t) * H;
      for (int64_t j = 0; j < H; j += W) {
        const int64_t left = H - j;
        const T* from = &z[b * Q + j];
        const Vec<T> i = sigmoid<T>(Vec<T>::loadu(from)), f = sigmoid<T>(Vec<T>::loadu(from + P));
        const Vec<T> g = tanh<T>(Vec<T>::loadu(from + 2 * P)), o = sigmoid<T>(Vec<T>::loadu(from + 3 * P));
        const Vec<T> next = at::vec::fmadd(f, Vec<T>::loadu(&c[b * P + j]), i * g), y = o * tanh<T>(next);
        next.store(&c[b * P + j]);
        y.store(&h[b * P + j]);
        store<T>(i, to + j, left), store<T>(f, to + H + j, left), store<T>(g, to + 2 * H + j, left);
        store<T>(o, to + 3 * H + j, left), store<T>(next, cell + j, left), store<T>(y, out + j, left);
      }
    }
  }
}

// grad [B, T, H] and what the forward pass kept -> dz [B, T, 4H], dweight [4H, H]
template <class T>
void lstm_lane_gradient(int64_t B, int64_t S, int64_t H, const T* grad, const T* hidden, const T* gates, const T* cells,
                        const T* weight, T* dz, T* dweight) {
  constexpr int W = Vec<T>::size();
  const int64_t P = padded<T>(H);
  const Vec<T> one(T(1));
  std::vector<T> across(4 * H * P, T(0)), dh(B * P, T(0)), dc(B * P, T(0)), total(4 * H * P, T(0)), rows(S * P, T(0));
  for (int64_t k = 0; k < 4 * H; k++) std::memcpy(&across[k * P], weight + k * H, H * sizeof(T));
  for (int64_t t = S - 1; t >= 0; t--) {
    for (int64_t b = 0; b < B; b++) {
      const int64_t at = b * S + t;
      const T *gate = gates + at * 4 * H, *cell = cells + at * H, *y = grad + at * H;
      T* to = dz + at * 4 * H;
      for (int64_t j = 0; j < H; j += W) {
        const int64_t left = H - j;
        const Vec<T> i = load<T>(gate + j, left), f = load<T>(gate + H + j, left);
        const Vec<T> g = load<T>(gate + 2 * H + j, left), o = load<T>(gate + 3 * H + j, left);
        const Vec<T> squashed = tanh<T>(load<T>(cell + j, left));
        const Vec<T> before = t > 0 ? load<T>(cell - H + j, left) : Vec<T>(T(0));
        const Vec<T> up = load<T>(y + j, left) + Vec<T>::loadu(&dh[b * P + j]);
        const Vec<T> down = Vec<T>::loadu(&dc[b * P + j]) + up * o * (one - squashed * squashed);
        store<T>(down * g * i * (one - i), to + j, left);
        store<T>(down * before * f * (one - f), to + H + j, left);
        store<T>(down * i * (one - g * g), to + 2 * H + j, left);
        store<T>(up * squashed * o * (one - o), to + 3 * H + j, left);
        (down * f).store(&dc[b * P + j]);
      }
    }
    if (t > 0) product<T, false>(B, P, 4 * H, dz + t * 4 * H, S * 4 * H, 1, across.data(), P, dh.data(), P);
  }
  for (int64_t b = 0; b < B; b++) {
    for (int64_t t = 0; t < S; t++) std::memcpy(&rows[t * P], hidden + (b * S + t) * H, H * sizeof(T));
    product<T, true>(4 * H, P, S - 1, dz + (b * S + 1) * 4 * H, 1, 4 * H, rows.data(), P, total.data(), P);
  }
  for (int64_t k = 0; k < 4 * H; k++) std::memcpy(dweight + k * H, &total[k * P], H * sizeof(T));
}

// ---- 3x3 convolutions ----------------------------------------------------------------------------------------------
//
// Winograd's F(4x4, 3x3) with the points 0, 1, -1, 2, -2 (Lavin & Gray 2016, sec. 4.3): Y = A'[(G g G') * (B' d B)]A for
// tiles d of 6x6 inputs and Y of 4x4 outputs, a quarter of the multiplications. Gradients are those of this formula.

constexpr int64_t TILES = 48;  // whose transforms stay in the cache while 36 products use them

template <class V> inline void input_points(V* d, int64_t s) {  // B' d
  typedef typename V::value_type T;
  const V two(T(2)), four(T(4)), five(T(5));
  const V a = d[0], b = d[s], c = d[2 * s], e = d[3 * s], f = d[4 * s], g = d[5 * s];
  const V p = f - four * c, q = e - four * b, r = f - c, t = two * (e - b);
  d[0] = four * a - five * c + f, d[s] = p + q, d[2 * s] = p - q, d[3 * s] = r + t, d[4 * s] = r - t;
  d[5 * s] = four * b - five * e + g;
}

template <class V> inline void input_points_transposed(V* d, int64_t s) {  // B d
  typedef typename V::value_type T;
  const V two(T(2)), four(T(4)), five(T(5));
  const V a = d[0], b = d[s] + d[2 * s], c = d[2 * s] - d[s], e = d[3 * s] + d[4 * s], f = d[3 * s] - d[4 * s];
  const V g = d[5 * s];
  d[0] = four * a, d[s] = four * (c + g) - two * f, d[2 * s] = V(T(0)) - five * a - four * b - e;
  d[3 * s] = two * f - c - five * g, d[4 * s] = a + b + e, d[5 * s] = g;
}

template <class V> inline void output_points(V* m, int64_t s) {  // A' m, four of six
  typedef typename V::value_type T;
  const V two(T(2)), four(T(4)), eight(T(8));
  const V a = m[0], b = m[s] + m[2 * s], c = m[s] - m[2 * s], d = m[3 * s] + m[4 * s], e = m[3 * s] - m[4 * s];
  const V f = m[5 * s];
  m[0] = a + b + d, m[s] = c + two * e, m[2 * s] = b + four * d, m[3 * s] = c + eight * e + f;
}

template <class V> inline void output_points_transposed(V* y, int64_t s) {  // A y, six of four
  typedef typename V::value_type T;
  const V two(T(2)), four(T(4)), eight(T(8));
  const V a = y[0], b = y[s], c = y[2 * s], d = y[3 * s];
  const V even = a + c, odd = b + d, high = a + four * c, low = two * b + eight * d;
  y[s] = even + odd, y[2 * s] = even - odd, y[3 * s] = high + low, y[4 * s] = high - low, y[5 * s] = d;
}

constexpr double G[6][3] = {{1. / 4, 0, 0},           {-1. / 6, -1. / 6, -1. / 6}, {-1. / 6, 1. / 6, -1. / 6},
                            {1. / 24, 1. / 12, 1. / 6}, {1. / 24, -1. / 12, 1. / 6}, {0, 0, 1}};

struct Shape {
  int64_t N, H, W, C, O, pad;
  int64_t height() const { return H + 2 * pad - 2; }
  int64_t width() const { return W + 2 * pad - 2; }
  int64_t rows() const { return (height() + 3) / 4; }
  int64_t columns() const { return (width() + 3) / 4; }
  int64_t tiles() const { return N * rows() * columns(); }
};

// U [36, first, second] of weights [O, C, 3, 3]: [36, C, O] or, turned, [36, O, C]; the second is padded.
template <class T> std::vector<T> weights(const Shape& s, const T* w, bool turned) {
  const int64_t stride = padded<T>(turned ? s.C : s.O), all = (turned ? s.O : s.C) * stride;
  std::vector<T> u(36 * all, T(0));
  for (int64_t o = 0; o < s.O; o++)
    for (int64_t c = 0; c < s.C; c++) {
      const T* g = w + (o * s.C + c) * 9;
      T half[6][3];
      for (int i = 0; i < 6; i++)
        for (int j = 0; j < 3; j++) half[i][j] = T(G[i][0]) * g[j] + T(G[i][1]) * g[3 + j] + T(G[i][2]) * g[6 + j];
      T* to = u.data() + (turned ? o * stride + c : c * stride + o);
      for (int i = 0; i < 6; i++)
        for (int j = 0; j < 6; j++)
          to[(i * 6 + j) * all] = half[i][0] * T(G[j][0]) + half[i][1] * T(G[j][1]) + half[i][2] * T(G[j][2]);
    }
  return u;
}

// One tile's pixels among an image's: those that lie outside are skipped.
template <class F> inline void each(int64_t top, int64_t side, int count, int64_t H, int64_t W, F f) {
  for (int i = 0; i < count; i++)
    if (top + i >= 0 && top + i < H)
      for (int j = 0; j < count; j++)
        if (side + j >= 0 && side + j < W) f(i, j, (top + i) * W + side + j);
}

template <class T> void gather_inputs(const Shape& s, const T* x, int64_t first, int64_t count, T* v) {  // V [36, TILES, C]
  typedef Vec<T> V;
  const int64_t P = padded<T>(s.C), per = s.rows() * s.columns();
  for (int64_t p = 0; p < count; p++) {
    const int64_t q = first + p, n = q / per, row = q % per / s.columns(), column = q % s.columns();
    const T* image = x + n * s.H * s.W * s.C;
    for (int64_t c = 0; c < s.C; c += V::size()) {
      V d[36];
      for (auto& one : d) one = V(T(0));
      each(row * 4 - s.pad, column * 4 - s.pad, 6, s.H, s.W,
           [&](int i, int j, int64_t at) { d[i * 6 + j] = load<T>(image + at * s.C + c, s.C - c); });
      for (int j = 0; j < 6; j++) input_points(d + j, 6);
      for (int i = 0; i < 6; i++) input_points(d + i * 6, 1);
      for (int k = 0; k < 36; k++) d[k].store(v + (k * TILES + p) * P + c);
    }
  }
}

template <class T> void convolve(const Shape& s, const T* x, const T* w, T* y) {
  typedef Vec<T> V;
  const int64_t PC = padded<T>(s.C), PO = padded<T>(s.O), per = s.rows() * s.columns();
  const std::vector<T> u = weights<T>(s, w, false);
  std::vector<T> v(36 * TILES * PC), m(36 * TILES * PO);
  for (int64_t first = 0; first < s.tiles(); first += TILES) {
    const int64_t count = std::min(TILES, s.tiles() - first);
    gather_inputs(s, x, first, count, v.data());
    for (int k = 0; k < 36; k++)
      product<T, false>(count, PO, s.C, &v[k * TILES * PC], PC, 1, &u[k * s.C * PO], PO, &m[k * TILES * PO], PO);
    for (int64_t p = 0; p < count; p++) {
      const int64_t q = first + p, n = q / per, row = q % per / s.columns(), column = q % s.columns();
      T* image = y + n * s.height() * s.width() * s.O;
      for (int64_t o = 0; o < s.O; o += V::size()) {
        V d[36];
        for (int k = 0; k < 36; k++) d[k] = V::loadu(&m[(k * TILES + p) * PO + o]);
        for (int j = 0; j < 6; j++) output_points(d + j, 6);
        for (int i = 0; i < 4; i++) output_points(d + i * 6, 1);
        each(row * 4, column * 4, 4, s.height(), s.width(),
             [&](int i, int j, int64_t at) { store<T>(d[i * 6 + j], image + at * s.O + o, s.O - o); });
      }
    }
  }
}

template <class T> void convolve_gradient(const Shape& s, const T* grad, const T* x, const T* w, T* dx, T* dw) {
  typedef Vec<T> V;
  const int64_t PC = padded<T>(s.C), PO = padded<T>(s.O), per = s.rows() * s.columns();
  const std::vector<T> u = weights<T>(s, w, true);
  std::vector<T> v(36 * TILES * PC), m(36 * TILES * PO), du(36 * s.C * PO, T(0));
  std::fill(dx, dx + s.N * s.H * s.W * s.C, T(0));
  for (int64_t first = 0; first < s.tiles(); first += TILES) {
    const int64_t count = std::min(TILES, s.tiles() - first);
    gather_inputs(s, x, first, count, v.data());
    for (int64_t p = 0; p < count; p++) {
      const int64_t q = first + p, n = q / per, row = q % per / s.columns(), column = q % s.columns();
      const T* image = grad + n * s.height() * s.width() * s.O;
      for (int64_t o = 0; o < s.O; o += V::size()) {
        V d[36];
        for (auto& one : d) one = V(T(0));
        each(row * 4, column * 4, 4, s.height(), s.width(),
             [&](int i, int j, int64_t at) { d[i * 6 + j] = load<T>(image + at * s.O + o, s.O - o); });
        for (int i = 0; i < 4; i++) output_points_transposed(d + i * 6, 1);
        for (int j = 0; j < 6; j++) output_points_transposed(d + j, 6);
        for (int k = 0; k < 36; k++) d[k].store(&m[(k * TILES + p) * PO + o]);
      }
    }
    for (int k = 0; k < 36; k++) {
      const T* errors = &m[k * TILES * PO];
      T* inputs = &v[k * TILES * PC];
      product<T, true>(s.C, PO, count, inputs, 1, PC, errors, PO, &du[k * s.C * PO], PO);
      product<T, false>(count, PC, s.O, errors, PO, 1, &u[k * s.O * PC], PC, inputs, PC);
    }
    for (int64_t p = 0; p < count; p++) {
      const int64_t q = first + p, n = q / per, row = q % per / s.columns(), column = q % s.columns();
      T* image = dx + n * s.H * s.W * s.C;
      for (int64_t c = 0; c < s.C; c += V::size()) {
        V d[36];
        for (int k = 0; k < 36; k++) d[k] = V::loadu(&v[(k * TILES + p) * PC + c]);
        for (int j = 0; j < 6; j++) input_points_transposed(d + j, 6);
        for (int i = 0; i < 6; i++) input_points_transposed(d + i * 6, 1);
        each(row * 4 - s.pad, column * 4 - s.pad, 6, s.H, s.W, [&](int i, int j, int64_t at) {
          T* to = image + at * s.C + c;
          store<T>(load<T>(to, s.C - c) + d[i * 6 + j], to, s.C - c);
        });
      }
    }
  }
  for (int64_t c = 0; c < s.C; c++)
    for (int64_t o = 0; o < s.O; o++) {
      T half[3][6], *to = dw + (o * s.C + c) * 9;
      for (int a = 0; a < 3; a++)
        for (int j = 0; j < 6; j++) {
          half[a][j] = 0;
          for (int i = 0; i < 6; i++) half[a][j] += T(G[i][a]) * du[(i * 6 + j) * s.C * PO + c * PO + o];
        }
      for (int a = 0; a < 3; a++)
        for (int b = 0; b < 3; b++) {
          T sum = 0;
          for (int j = 0; j < 6; j++) sum += half[a][j] * T(G[j][b]);
          to[a * 3 + b] = sum;
        }
    }
}

// ---- operators -----------------------------------------------------------------------------------------------------

template <class F> void by_type(const Tensor& like, F f) {
  if (like.scalar_type() == torch::headeronly::ScalarType::Double) f(double()); else f(float());
}

template <class T> T* at(const Tensor& tensor, int64_t lane) {
  return static_cast<T*>(tensor.data_ptr()) + (tensor.size(0) ? lane * (tensor.numel() / tensor.size(0)) : 0);
}

std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& projected_, const Tensor& weight_) {
  const Tensor projected = torch::stable::contiguous(projected_), weight = torch::stable::contiguous(weight_);
  const int64_t L = weight.size(0), H = weight.size(2), B = projected.size(1), S = projected.size(2);
  Tensor hidden = torch::stable::new_empty(weight, {L, B, S, H}), gates = torch::stable::new_empty(weight, {L, B, S, 4 * H});
  Tensor cells = torch::stable::new_empty(weight, {L, B, S, H});
  by_type(weight, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t l = 0; l < L; l++)
      lstm_lane<T>(B, S, H, at<T>(projected, l), at<T>(weight, l), at<T>(hidden, l), at<T>(gates, l), at<T>(cells, l));
  });
  return {hidden, gates, cells};
}

std::tuple<Tensor, Tensor> lstm_gradient(const Tensor& grad_, const Tensor& hidden_, const Tensor& gates_,
                                         const Tensor& cells_, const Tensor& weight_) {
  const Tensor grad = torch::stable::contiguous(grad_), hidden = torch::stable::contiguous(hidden_);
  const Tensor gates = torch::stable::contiguous(gates_), cells = torch::stable::contiguous(cells_);
  const Tensor weight = torch::stable::contiguous(weight_);
  const int64_t L = weight.size(0), H = weight.size(2), B = grad.size(1), S = grad.size(2);
  Tensor dz = torch::stable::new_empty(weight, {L, B, S, 4 * H}), dweight = torch::stable::new_empty(weight, {L, 4 * H, H});
  by_type(weight, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t l = 0; l < L; l++)
      lstm_lane_gradient<T>(B, S, H, at<T>(grad, l), at<T>(hidden, l), at<T>(gates, l), at<T>(cells, l),
                            at<T>(weight, l), at<T>(dz, l), at<T>(dweight, l));
  });
  return {dz, dweight};
}

Shape shape(const Tensor& x, const Tensor& w, int64_t pad) {
  return {x.size(1), x.size(2), x.size(3), x.size(4), w.size(1), pad};
}

Tensor conv3x3(const Tensor& x_, const Tensor& w_, int64_t pad) {
  const Tensor x = torch::stable::contiguous(x_), w = torch::stable::contiguous(w_);
  const Shape s = shape(x, w, pad);
  Tensor y = torch::stable::new_empty(x, {x.size(0), s.N, s.height(), s.width(), s.O});
  by_type(x, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t l = 0; l < x.size(0); l++) convolve<T>(s, at<T>(x, l), at<T>(w, l), at<T>(y, l));
  });
  return y;
}

std::tuple<Tensor, Tensor> conv3x3_gradient(const Tensor& grad_, const Tensor& x_, const Tensor& w_, int64_t pad) {
  const Tensor grad = torch::stable::contiguous(grad_), x = torch::stable::contiguous(x_);
  const Tensor w = torch::stable::contiguous(w_);
  const Shape s = shape(x, w, pad);
  Tensor dx = torch::stable::new_empty(x, {x.size(0), s.N, s.H, s.W, s.C});
  Tensor dw = torch::stable::new_empty(w, {x.size(0), s.O, s.C, 3, 3});
  by_type(x, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t l = 0; l < x.size(0); l++)
      convolve_gradient<T>(s, at<T>(grad, l), at<T>(x, l), at<T>(w, l), at<T>(dx, l), at<T>(dw, l));
  });
  return {dx, dw};
}

// For programs that are C++ libraries themselves: by handles, without a dispatcher. Inputs are borrowed.
Tensor borrowed(AtenTensorHandle handle) {
  AtenTensorHandle own;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(handle, &own));
  return Tensor(own);
}

void hand(const Tensor& tensor, AtenTensorHandle* to) {
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(tensor.get(), to));
}

template <class F> AOTITorchError guarded(F f) {
  try {
    f();
    return AOTI_TORCH_SUCCESS;
  } catch (...) {
    return AOTI_TORCH_FAILURE;
  }
}

STABLE_TORCH_LIBRARY_IMPL(flstudy, CPU, m) {
  m.impl("lstm", TORCH_BOX(&lstm));
  m.impl("lstm_gradient", TORCH_BOX(&lstm_gradient));
  m.impl("conv3x3", TORCH_BOX(&conv3x3));
  m.impl("conv3x3_gradient", TORCH_BOX(&conv3x3_gradient));
}

}  // namespace

#define SHIM extern "C" __attribute__((visibility("default"))) AOTITorchError
typedef AtenTensorHandle In;
typedef AtenTensorHandle* Out;

SHIM aoti_torch_cpu_lstm(In projected, In weight, Out hidden, Out gates, Out cells) {
  return guarded([&] {
    const auto [a, b, c] = lstm(borrowed(projected), borrowed(weight));
    hand(a, hidden), hand(b, gates), hand(c, cells);
  });
}

SHIM aoti_torch_cpu_lstm_gradient(In grad, In hidden, In gates, In cells, In weight, Out dz, Out dweight) {
  return guarded([&] {
    const auto [a, b] =
        lstm_gradient(borrowed(grad), borrowed(hidden), borrowed(gates), borrowed(cells), borrowed(weight));
    hand(a, dz), hand(b, dweight);
  });
}

SHIM aoti_torch_cpu_conv3x3(In x, In weight, int64_t padding, Out y) {
  return guarded([&] { hand(conv3x3(borrowed(x), borrowed(weight), padding), y); });
}

SHIM aoti_torch_cpu_conv3x3_gradient(In grad, In x, In weight, int64_t padding, Out dx, Out dweight) {
  return guarded([&] {
    const auto [a, b] = conv3x3_gradient(borrowed(grad), borrowed(x), borrowed(weight), padding);
    hand(a, dx), hand(b, dweight);
  });
}

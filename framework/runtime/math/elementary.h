// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moegrad::math {

// Note [Elementary functions]
// IEEE 754 fixes every bit of + - * / and sqrt, but not of exp or cos: the mathematical library of
// a system decides those, and two versions of glibc, or one version on two kinds of CPU, decide
// differently for some arguments. So all that reaches a loss, a gradient, a parameter, a learning
// rate or a random number calls the functions of this folder, which need no mathematical library:
//
//  - of float: the float nearest to the exact value, for every argument;
//  - of double: rounded from a value with an error below 2^-90 of it. This is the double nearest to
//    the exact value but for about one argument in 2^36, and the same double everywhere.
//
// They have two phases. The quick one computes in double, or for a double as a sum high + low, with
// a bound on its error. If all values within that bound round to one number, that is the result;
// else the accurate phase computes again, in double-double arithmetic (double_double.h), which has
// 106 bits. Since the result is the rounding of the exact value either way, it depends neither on
// the choice of the phase nor on the compiler. Where double functions are rare (erf, erfc, tanh,
// pow) there is the accurate phase alone.
//
// Only the basic operations are used. An fma serves for nothing but the exact error of a product,
// which is computed in another way, with the same bits, where the CPU has no fma. Tables come from
// series that the compiler sums. Special values are those of Annex F of the C standard; a NaN that
// is returned is the positive quiet one, and no flag or rounding mode is looked at.
//
// Method: A. Ziv, "Fast evaluation of elementary mathematical functions with correctly rounded last
// bit", 1991; A. Sibidanov, P. Zimmermann, S. Glondu, "The CORE-MATH Project", 2022.

/// e^x
float exp(float x);
double exp(double x);

/// Natural logarithm; -inf at 0, NaN below it.
float log(float x);
double log(double x);

/// log(1 + x)
float log1p(float x);
double log1p(double x);

/// x is an angle in radians, of any size; NaN at infinity.
float sin(float x);
double sin(double x);
float cos(float x);
double cos(double x);

float tanh(float x);
double tanh(double x);

/// 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x
float erf(float x);
double erf(double x);

/// 1 - erf(x), without its loss of digits where erf(x) is close to 1
double erfc(double x);

/// x^y; 1 if x is 1 or y is 0, whatever the other is.
float pow(float x, float y);
double pow(double x, double y);

}  // namespace moegrad::math

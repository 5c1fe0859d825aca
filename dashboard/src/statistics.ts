/** An estimate of a mean or a share, with its 95 % interval. The limits are `null` when there are too few values for an interval. */
export type Estimate = { readonly value: number; readonly low: number | null; readonly high: number | null };

/** Facts about some values: their number, mean and standard deviation (population). */
export type Sample = { readonly count: number; readonly mean: number; readonly deviation: number };

/** Two-sided 95 % quantile of the normal distribution. */
const Z = 1.959964;

/** Returns the two-sided 95 % quantile of Student's distribution, by the expansion of Cornish and Fisher. It is exact to 1 % from 4 degrees on. */
function studentQuantile(degrees: number): number {
  return Z + (Z ** 3 + Z) / (4 * degrees) + (5 * Z ** 5 + 16 * Z ** 3 + 3 * Z) / (96 * degrees ** 2);
}

/** Returns the square of the standard error of a mean. */
function errorSquare({ count, deviation }: Sample): number {
  return deviation ** 2 / (count - 1);
}

function around(value: number, half: number): Estimate {
  return { value, low: value - half, high: value + half };
}

/** Estimates a mean from values that count as independent; `null` when there are none. */
export function meanEstimate(sample: Sample): Estimate | null {
  const { count, mean } = sample;
  if (count === 0) return null;
  if (count === 1) return { value: mean, low: null, high: null };
  return around(mean, studentQuantile(count - 1) * Math.sqrt(errorSquare(sample)));
}

/** Estimates the second mean minus the first by Welch's method, which does not assume equal variances; `null` when one of them is missing. */
export function meanDifference(first: Sample, second: Sample): Estimate | null {
  if (first.count === 0 || second.count === 0) return null;
  const value = second.mean - first.mean;
  if (first.count === 1 || second.count === 1) return { value, low: null, high: null };
  const [one, other] = [errorSquare(first), errorSquare(second)];
  const square = one + other;
  if (square === 0) return around(value, 0);
  const degrees = square ** 2 / (one ** 2 / (first.count - 1) + other ** 2 / (second.count - 1));
  return around(value, studentQuantile(degrees) * Math.sqrt(square));
}

/** Estimates a share by Wilson's method, whose limits stay between 0 and 1; `null` when `whole` is 0. */
export function shareEstimate(part: number, whole: number): (Estimate & { low: number; high: number }) | null {
  if (whole === 0) return null;
  const share = part / whole;
  const scale = 1 + Z ** 2 / whole;
  const center = (share + Z ** 2 / (2 * whole)) / scale;
  const half = (Z / scale) * Math.sqrt((share * (1 - share)) / whole + Z ** 2 / (4 * whole ** 2));
  return { value: share, low: center - half, high: center + half };
}

/** Estimates the second share minus the first by Newcombe's method, which uses the limits of both; `null` when one of them is missing. */
export function shareDifference(
  first: ReturnType<typeof shareEstimate>,
  second: ReturnType<typeof shareEstimate>,
): Estimate | null {
  if (first === null || second === null) return null;
  const value = second.value - first.value;
  const below = Math.hypot(second.value - second.low, first.high - first.value);
  const above = Math.hypot(second.high - second.value, first.value - first.low);
  return { value, low: value - below, high: value + above };
}

/** Whether an interval leaves out 0, so that the two sides differ by more than chance explains. */
export function differs({ low, high }: Estimate): boolean {
  return low !== null && high !== null && (low > 0 || high < 0);
}

/** Whether everything is tested, as by `npm test -- --all`. */
export const ALL_TESTS = process.env.FLOE_ALL_TESTS === '1';

/** Returns the number of runs of a property test that takes long: `all` with `npm test -- --all`, otherwise a fifth. */
export function runs(all: number): number {
  return ALL_TESTS ? all : Math.ceil(all / 5);
}

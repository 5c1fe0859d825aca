/**
 * As `Promise.all`, but waits for every one of them even when some fail: what runs on in the background after a failure could
 * meet what is done about it. Throws what the first of the list to fail threw: statements of one transaction are listed in the
 * order in which they were asked for, since after the first that fails the database refuses the others whatever they are.
 */
export async function allDone<T extends readonly Promise<unknown>[]>(all: readonly [...T]): Promise<Values<T>> {
  await Promise.allSettled(all);
  return Promise.all(all) as Promise<Values<T>>;
}

type Values<T extends readonly Promise<unknown>[]> = { [K in keyof T]: Awaited<T[K]> };

/** Resolves in the next turn of the event loop, so that pending I/O is handled between two parts of a long computation. */
export function nextEventLoopTurn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

/**
 * Resolves when the event loop has handled the input that had arrived before the call. A late timer runs before such input, so it needs this
 * before it concludes that something did not arrive.
 */
export async function inputHandled(): Promise<void> {
  // The first turn can end without reading, when the call is made after the loop has read.
  await nextEventLoopTurn();
  await nextEventLoopTurn();
}

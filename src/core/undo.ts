/**
 * Undoes what was done, the last first, and empties the list. One that fails must not leave the rest, a spawn helper for
 * instance, running: the first failure is thrown when all have been tried.
 */
export async function undoAll(steps: (() => Promise<unknown>)[]): Promise<void> {
  const failures: unknown[] = [];
  for (let undo = steps.pop(); undo !== undefined; undo = steps.pop()) {
    try {
      await undo();
    } catch (error) {
      failures.push(error);
    }
  }
  if (failures.length > 0) throw failures[0];
}

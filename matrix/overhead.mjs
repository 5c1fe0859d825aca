export async function measureOverhead() {
  return [];
}

// No SDK may call home from this suite: their clients all go through `fetch`, which reaches this machine only.
const real = globalThis.fetch;
const LOOPBACK = new Set(['127.0.0.1', 'localhost', '[::1]']);

if (real.name !== 'loopbackFetch') {
  globalThis.fetch = async function loopbackFetch(input, init) {
    const url = new URL(input instanceof Request ? input.url : input);
    if (url.protocol !== 'data:' && !LOOPBACK.has(url.hostname)) throw new Error(`${url.origin} is not this machine`);
    return await real(input, init);
  };
}

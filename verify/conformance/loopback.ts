// Replaces the global `fetch`, which all SDKs use. The replacement rejects requests to other machines, so that no SDK contacts its vendor from
// this suite.
const LOOPBACK = new Set(['127.0.0.1', 'localhost', '[::1]']);
const systemFetch = globalThis.fetch;

if (systemFetch.name !== 'loopbackFetch') {
  globalThis.fetch = async function loopbackFetch(input, init) {
    const url = new URL(input instanceof Request ? input.url : input);
    if (url.protocol !== 'data:' && !LOOPBACK.has(url.hostname)) throw new Error(`${url.origin} is not this machine`);
    return await systemFetch(input, init);
  };
}

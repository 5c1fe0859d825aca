// The script of every page: theme, menu, switch of versions and search. Data is loaded by script elements, which also work in pages that are
// opened as files.
{
  const { version, toVersion, page } = document.documentElement.dataset;
  const byId = (id) => document.getElementById(id);

  byId('theme').addEventListener('click', () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme
      ? root.dataset.theme === 'dark'
      : matchMedia('(prefers-color-scheme: dark)').matches;
    root.dataset.theme = isDark ? 'light' : 'dark';
    localStorage.setItem('floe-theme', root.dataset.theme);
  });

  if (matchMedia('(max-width: 50rem)').matches) document.querySelector('.menu').open = false;
  document.querySelector('nav a[aria-current]')?.scrollIntoView({ block: 'nearest' });

  const versions = byId('version');
  const known = window.floeVersions ?? [];
  versions.replaceChildren(...known.map((one) => new Option(one.version, one.version)));
  versions.value = version;
  versions.addEventListener('change', () => {
    const chosen = known.find((one) => one.version === versions.value);
    const same = chosen.pages.includes(page) ? page : 'docs/README.html';
    location.href = `${toVersion}../${chosen.version}/${same}`;
  });

  const load = (name) =>
    new Promise((resolve, reject) => {
      const script = document.createElement('script');
      script.src = `${toVersion}assets/${name}`;
      script.onload = resolve;
      script.onerror = () => reject(new Error(`${script.src} cannot be loaded`));
      document.head.append(script);
    });

  let loading = null;
  /** Loads the sections of all pages and indexes them, once. */
  const loadIndex = () => {
    loading ??= Promise.all([load('minisearch.js'), load('sections.js')]).then(() => {
      const index = new window.MiniSearch({
        fields: ['title', 'heading', 'text'],
        storeFields: ['title', 'heading', 'url', 'text'],
        searchOptions: { boost: { title: 3, heading: 2 }, prefix: true, fuzzy: 0.15, combineWith: 'AND' },
      });
      index.addAll(window.floeSections.map((section, id) => ({ id, ...section })));
      return index;
    });
    return loading;
  };

  const input = byId('search');
  const results = byId('results');
  const excerpt = (text, terms) => {
    const lower = text.toLowerCase();
    const places = terms.map((term) => lower.indexOf(term)).filter((place) => place >= 0);
    const start = Math.max(0, Math.min(...places, text.length) - 40);
    return `${start > 0 ? '… ' : ''}${text.slice(places.length > 0 ? start : 0).slice(0, 120)}`;
  };
  const item = ({ title, heading, url, text, terms }) => {
    const link = document.createElement('a');
    link.href = `${toVersion}${url}`;
    link.textContent = heading === title ? title : `${title}: ${heading}`;
    const small = document.createElement('small');
    small.textContent = excerpt(text, terms);
    link.append(small);
    const entry = document.createElement('li');
    entry.append(link);
    return entry;
  };
  const search = async () => {
    const query = input.value.trim();
    const index = await loadIndex();
    if (query !== input.value.trim()) return;
    const found = index.search(query).slice(0, 12);
    const none = document.createElement('li');
    none.textContent = 'Nothing found';
    results.replaceChildren(...(found.length > 0 ? found.map(item) : [none]));
    results.hidden = query === '';
  };
  input.addEventListener('input', search);
  input.addEventListener('focus', loadIndex, { once: true });
  document.addEventListener('keydown', (event) => {
    const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
    if (event.key === '/' && !isTyping) {
      event.preventDefault();
      input.focus();
    }
    if (event.key === 'Escape') results.hidden = true;
    if (!/^Arrow(Up|Down)$/.test(event.key) || results.hidden) return;
    const places = [input, ...results.querySelectorAll('a')];
    const at = places.indexOf(document.activeElement);
    if (at < 0) return;
    event.preventDefault();
    places.at((at + (event.key === 'ArrowDown' ? 1 : -1)) % places.length).focus();
  });
  input.addEventListener('keydown', (event) => {
    if (event.key === 'Enter') results.querySelector('a')?.click();
  });
  document.addEventListener('click', (event) => {
    if (!event.target.closest('.search')) results.hidden = true;
  });
}

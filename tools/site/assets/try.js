// The form that sends requests to a floe server. `floeApi` lists the calls of openapi.json.
{
  const place = document.getElementById('try');
  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  const field = (name, control) => make('label', {}, name, control);

  const call = make('select', { id: 'try-call' });
  call.append(...window.floeApi.map(({ id, method, path }) => new Option(`${method} ${path}`, id)));
  const server = make('input', {
    id: 'try-server',
    type: 'url',
    value: localStorage.getItem('floe-server') ?? 'http://127.0.0.1:8080',
  });
  const token = make('input', { id: 'try-token', type: 'password', autocomplete: 'off' });
  const summary = make('p');
  const parameters = make('div');
  const body = make('textarea', { id: 'try-body', spellcheck: false });
  const bodyField = field('Body', body);
  const send = make('button', { id: 'try-send', type: 'submit' }, 'Send');
  const command = make('code', { id: 'try-command' });
  const status = make('p', { id: 'try-status', role: 'status' });
  const reply = make('code', { id: 'try-reply' });
  const form = make(
    'form',
    {},
    field('Server', server),
    field('Token', token),
    field('Call', call),
    summary,
    parameters,
    bodyField,
    send,
  );
  const shown = (code) => make('pre', { tabIndex: 0 }, code);
  place.append(form, status, shown(reply), make('h2', {}, 'The request as a command'), shown(command));

  const chosen = () => window.floeApi.find(({ id }) => id === call.value);
  /** Returns the address of the call; throws an Error that names the first missing parameter. */
  const address = () => {
    let path = chosen().path;
    const query = new URLSearchParams();
    for (const input of parameters.querySelectorAll('input')) {
      const { name, value } = input;
      if (value === '' && input.required) throw new Error(`${name} is missing`);
      if (input.dataset.in === 'path') path = path.replace(`{${name}}`, encodeURIComponent(value));
      else if (value !== '') query.set(name, value);
    }
    const end = query.size > 0 ? `?${query}` : '';
    return `${server.value.replace(/\/$/, '')}${path}${end}`;
  };
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const showCommand = () => {
    const { method, media } = chosen();
    const parts = ['curl', '-X', method, '-H', '"Authorization: Bearer $FLOE_TOKEN"'];
    if (media === 'application/json') parts.push('-H', quoted(`content-type: ${media}`), '-d', quoted(body.value));
    try {
      command.textContent = [...parts, quoted(address())].join(' ');
    } catch (error) {
      command.textContent = error.message;
    }
  };
  const showCall = () => {
    const { summary: text, parameters: list, sample, media } = chosen();
    summary.textContent = text;
    parameters.replaceChildren(
      ...list.map(({ name, in: where, required, hint }) => {
        const input = make('input', { name, required, placeholder: hint });
        input.dataset.in = where;
        return field(`${name} (${where})`, input);
      }),
    );
    bodyField.hidden = media !== 'application/json';
    body.value = bodyField.hidden ? '' : JSON.stringify(sample, null, 2);
    showCommand();
  };
  const request = async () => {
    const { method, media } = chosen();
    const headers = token.value === '' ? {} : { authorization: `Bearer ${token.value}` };
    const isJson = media === 'application/json';
    if (isJson) headers['content-type'] = media;
    localStorage.setItem('floe-server', server.value);
    return fetch(address(), { method, headers, ...(isJson ? { body: body.value } : {}) });
  };
  call.addEventListener('change', showCall);
  form.addEventListener('input', showCommand);
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    status.textContent = 'Sending';
    reply.textContent = '';
    try {
      const response = await request();
      const text = await response.text();
      const isJson = (response.headers.get('content-type') ?? '').startsWith('application/json');
      reply.textContent = isJson ? JSON.stringify(JSON.parse(text), null, 2) : text;
      status.textContent = `${response.status} ${response.statusText}`;
    } catch (error) {
      status.textContent = `Not sent: ${error.message}. Is the address right, and does the server permit this page (server.page_origins)?`;
    }
  });
  showCall();
}

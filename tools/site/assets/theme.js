// Runs before the page is drawn, so that a chosen theme does not appear after the other one.
{
  const theme = localStorage.getItem('floe-theme');
  if (theme !== null) document.documentElement.dataset.theme = theme;
}

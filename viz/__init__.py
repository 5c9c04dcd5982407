"""The page. It imports saguaro_core and draws only what the events say; nothing imports it but app.py.

page.py        builds the page from an engine: header, chat, timeline, and the launch options
chat.py        the chat area: layout and wiring          handlers.py  what its buttons do
replay.py      the page on recorded traces, without an engine
deltas.py      events -> compact rows, numbered chunks   (pure)
livestats.py   events -> the running numbers             (pure)
safetext.py    text made inert for a Markdown renderer   (pure)
components/    gr.HTML subclasses, each with its own html, css and js file
"""

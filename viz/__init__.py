"""The page. It imports saguaro_core and draws only what the events say; nothing imports it but app.py.

page.py        header and tabs, and how they are served      context.py    the engine's slot, the recorded runs
chat.py race.py learn.py lab.py                              one tab each: layout and wiring
handlers.py    what the chat's buttons do                    choices.py    its settings: form, address, keywords
replay.py      recorded runs in the chat                     recording.py  somebody else's trace, checked
deltas.py      events -> rows of the timeline (pure)         rounds.py     events -> one round in words (pure)
pace.py        events -> when each token came (pure)         tokenlog.py   events -> coloured tokens (pure)
livestats.py   events -> the running numbers (pure)          comparison.py several runs of one prompt (pure)
safetext.py    text made inert for a Markdown renderer       theme.py      colours, fonts, the content policy
wiring.py      buttons and events of tabs that measure
components/    gr.HTML subclasses, each with its own html, css and js file
"""

"""Storm's Python split bolt, as Storm's documentation writes it; `storm` is the module that Storm ships for it."""

import storm


class Split(storm.BasicBolt):
    def process(self, tup):
        for word in tup.values[0].split(" "):
            storm.emit([word])


Split().run()

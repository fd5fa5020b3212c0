"""A WebSocket server that sends back what it gets, compressed if the client likes. Prints its port."""

import sys

from autobahn.twisted.websocket import WebSocketServerFactory, WebSocketServerProtocol
from autobahn.websocket.compress import (
    PerMessageDeflateOffer,
    PerMessageDeflateOfferAccept,
)
from twisted.internet import reactor


class Echo(WebSocketServerProtocol):
    def onMessage(self, payload, binary):
        self.sendMessage(payload, binary)


def accept(offers):
    for offer in offers:
        if isinstance(offer, PerMessageDeflateOffer):
            return PerMessageDeflateOfferAccept(offer)


# Without a URL the port in `Host` is not looked at: it is that of the hub.
factory = WebSocketServerFactory()
factory.protocol = Echo
factory.setProtocolOptions(perMessageCompressionAccept=accept, failByDrop=False)
port = reactor.listenTCP(0, factory, interface="127.0.0.1")
print(port.getHost().port)
sys.stdout.flush()
reactor.run()

"""The cases about cards."""

import httpx

from a2a.client import A2ACardResolver
from a2a.client.errors import AgentCardResolutionError
from a2a.utils import signing
from jwt.api_jwk import PyJWK, PyJWKSet

from cases import PATIENCE, RUNTIME
from events import raises, want


class Discovery:
    """Finds the card in the form of a version."""

    def __init__(self, base, keys, http):
        self.base, self.keys, self.http = base, keys, http
        self.cards = {}

    async def resolve(self, version, **more):
        path = '.well-known/agent.json' if version == '0.3' else None
        return await A2ACardResolver(self.http, self.base).get_agent_card(relative_card_path=path, **more)

    async def card(self, version):
        card = self.cards[version] = await self.resolve(version)
        interfaces = [(i.protocol_binding, i.protocol_version[:3], i.url) for i in card.supported_interfaces]
        for binding in ('JSONRPC', 'HTTP+JSON'):
            want((binding, version, self.base) in interfaces, f'{binding} {version}', interfaces)
        want(card.name == 'interop' and card.description and card.version and card.skills[0].id, 'a whole card', card)
        capabilities = card.capabilities
        want(capabilities.streaming and capabilities.push_notifications, 'true capabilities', capabilities)
        runtime = [e for e in capabilities.extensions if e.uri == RUNTIME]
        want(len(runtime) == 1 and runtime[0].required, 'runtime/v1 required', capabilities)
        want(self.base.endswith(runtime[0].params['instance_id']), 'the instance id', runtime[0].params)
        want(card.security_schemes['bearer'].http_auth_security_scheme.scheme.lower() == 'bearer', 'the scheme', card)

    async def card_unauthenticated(self, version):
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as nobody:
            e = await raises(AgentCardResolutionError, A2ACardResolver(nobody, self.base).get_agent_card())
        want(e.status_code == 401, 'status 401', e.status_code)

    async def verifier(self):
        answer = await self.http.get(self.keys)
        key_set = PyJWKSet.from_dict(answer.json())

        def provide(kid: str | None, jku: str | None) -> PyJWK:
            want(jku == self.keys, 'the address of the key set', jku)
            return key_set[kid]

        return signing.create_signature_verifier(provide, ['EdDSA'])

    async def card_signature(self, version):
        verify = await self.verifier()
        card = await self.resolve(version, signature_verifier=verify)
        card.description += '!'
        try:
            verify(card)
        except signing.InvalidSignaturesError:
            return
        raise AssertionError('a changed card verifies')

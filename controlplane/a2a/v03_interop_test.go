package a2a_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	peer "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
)

// TestInteropGoSDK03 drives the surface with the 0.3 client of the Go SDK: by
// the interfaces the card of 1.0 lists, and by the card of 0.3.
func TestInteropGoSDK03(t *testing.T) {
	r := newRig(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	card, err := agentcard.NewResolver(http.DefaultClient).Resolve(ctx, r.url+"/agents/"+idA)
	if err != nil {
		t.Fatal(err)
	}
	resolver := agentcard.NewResolver(http.DefaultClient)
	resolver.CardParser = a2av0.NewAgentCardParser()
	for _, opts := range [][]agentcard.ResolveOption{
		{agentcard.WithRequestHeader("A2A-Version", "0.3")}, {agentcard.WithPath("/.well-known/agent.json")},
	} {
		card03, err := resolver.Resolve(ctx, r.url+"/agents/"+idA, opts...)
		if err != nil {
			t.Fatal(err)
		}
		if len(card03.SupportedInterfaces) == 0 || card03.Name != "demo" || len(card03.Skills) != 1 || len(card03.SecuritySchemes) != 1 {
			t.Errorf("card of 0.3: %+v", card03)
		}
		card.SupportedInterfaces = append(card.SupportedInterfaces, card03.SupportedInterfaces...)
	}
	for i, iface := range card.SupportedInterfaces[2:] {
		t.Run(string(iface.ProtocolBinding), func(t *testing.T) {
			c, err := a2aclient.NewFromEndpoints(ctx, []*peer.AgentInterface{iface},
				a2av0.WithJSONRPCTransport(a2av0.JSONRPCTransportConfig{}), a2av0.WithRESTTransport(a2av0.RESTTransportConfig{}))
			if err != nil {
				t.Fatalf("interface %d: %v", i, err)
			}
			var noList error
			if iface.ProtocolBinding == peer.TransportProtocolJSONRPC {
				noList = peer.ErrUnsupportedOperation
			}
			drive(a2aclient.AttachServiceParams(ctx, a2aclient.ServiceParams{"A2A-Extensions": {extensions.Runtime}}), t, c, noList)
			_, err = c.SendMessage(ctx, &peer.SendMessageRequest{Message: peer.NewMessage(peer.MessageRoleUser, peer.NewTextPart("x"))})
			if err == nil || iface.ProtocolBinding == peer.TransportProtocolHTTPJSON && !errors.Is(err, peer.ErrExtensionSupportRequired) {
				t.Errorf("without the extension: %v", err)
			}
		})
	}
}

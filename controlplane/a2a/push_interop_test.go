package a2a_test

import (
	"context"
	"errors"
	"testing"
	"time"

	peer "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
)

// TestPushInteropGoSDK: the Go SDK's client keeps webhooks on both bindings.
func TestPushInteropGoSDK(t *testing.T) {
	r := newPushRig(t)
	url, got := webhook(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	ctx = a2aclient.AttachServiceParams(ctx, a2aclient.ServiceParams{"A2A-Extensions": {extensions.Runtime}})
	for _, binding := range []peer.TransportProtocol{peer.TransportProtocolJSONRPC, peer.TransportProtocolHTTPJSON} {
		t.Run(string(binding), func(t *testing.T) {
			c, err := a2aclient.NewFromEndpoints(ctx, []*peer.AgentInterface{
				{URL: r.url + "/agents/" + idA, ProtocolBinding: binding, ProtocolVersion: "1.0"},
			})
			if err != nil {
				t.Fatal(err)
			}
			sent, err := c.SendMessage(ctx, &peer.SendMessageRequest{
				Message: peer.NewMessage(peer.MessageRoleUser, peer.NewTextPart("hello")),
				Config:  &peer.SendMessageConfig{PushConfig: &peer.PushConfig{ID: "inline", URL: url, Token: "tok"}},
			})
			if err != nil {
				t.Fatal(err)
			}
			id := sent.(*peer.Task).ID
			for state := any(nil); state != "TASK_STATE_COMPLETED"; {
				d := r.next(got)
				state = dig(d.body, "statusUpdate", "status", "state")
			}
			made, err := c.CreateTaskPushConfig(ctx, &peer.PushConfig{
				TaskID: id, ID: "more", URL: url, Auth: &peer.PushAuthInfo{Scheme: "Bearer", Credentials: "cred"},
			})
			if err != nil || made.ID != "more" || made.TaskID != id || made.Auth.Scheme != "Bearer" || made.Auth.Credentials != "" {
				t.Errorf("create: %+v, %v", made, err)
			}
			if d := r.next(got); d.header.Get("Authorization") != "Bearer cred" {
				t.Errorf("delivered %s", d.raw)
			}
			one, err := c.GetTaskPushConfig(ctx, &peer.GetTaskPushConfigRequest{TaskID: id, ID: "inline"})
			if err != nil || one.URL != url || one.Token != "" {
				t.Errorf("get: %+v, %v", one, err)
			}
			if _, err := c.GetTaskPushConfig(ctx, &peer.GetTaskPushConfigRequest{TaskID: id, ID: "none"}); !errors.Is(err, peer.ErrTaskNotFound) {
				t.Errorf("get of none: %v", err)
			}
			list, err := c.ListTaskPushConfigs(ctx, &peer.ListTaskPushConfigRequest{TaskID: id})
			if err != nil || len(list) != 2 || list[0].ID != "inline" || list[1].ID != "more" {
				t.Errorf("list: %+v, %v", list, err)
			}
			for range 2 {
				if err := c.DeleteTaskPushConfig(ctx, &peer.DeleteTaskPushConfigRequest{TaskID: id, ID: "more"}); err != nil {
					t.Errorf("delete: %v", err)
				}
			}
		})
	}
}

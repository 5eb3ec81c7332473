package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/cmd/sandboxctl/terminal"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/signing"
)

// maxKeySet bounds a key set, in bytes.
const maxKeySet = 1 << 20

// verifiedCard is the result of a verification that held.
type verifiedCard struct {
	Name     string   `json:"name"`
	Verified bool     `json:"verified"`
	Keys     []string `json:"keys"`    // ids of those that signed it
	KeySet   string   `json:"key_set"` // where they came from
}

// verifyCard checks a card's signatures with the keys of the server we know,
// never with keys from an address that the card names itself.
func verifyCard(ctx context.Context, c *connection, card json.RawMessage) (result, error) {
	at := c.server + "/.well-known/jwks.json"
	set, err := c.keySet(ctx, at)
	if err != nil {
		return result{}, err
	}
	by, err := signing.Verify(card, set)
	if err != nil {
		return result{}, withRemedy(fmt.Errorf("card is not verified: %w", err), verifyRemedy(err))
	}
	var named struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal(card, &named); err != nil {
		return result{}, fmt.Errorf("cannot read card: %w", err)
	}
	v := verifiedCard{Name: terminal.Line(named.Name), Verified: true, Keys: by, KeySet: at}
	return result{
		value: v, names: []string{v.Name},
		table: rows([]string{"CARD", "VERIFIED", "SIGNED BY", "KEYS FROM"}, []verifiedCard{v}, func(v verifiedCard) []string {
			return []string{v.Name, yesNo(v.Verified), strings.Join(v.Keys, ", "), v.KeySet}
		}),
	}, nil
}

func verifyRemedy(err error) string {
	switch {
	case errors.Is(err, signing.ErrForged):
		return "do not trust it: something between the server and here changes cards"
	case errors.Is(err, signing.ErrUnknownKey):
		return "fetch the card again: its key has been rotated, or it is not this server's"
	case errors.Is(err, signing.ErrUnsigned):
		return "upgrade the server: it signs no cards"
	}
	return ""
}

// keySet fetches a key set. It needs no token, and gets none.
func (c *connection) keySet(ctx context.Context, at string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot ask for keys: %w", err)
	}
	req.Header.Set("User-Agent", "sandboxctl/"+version)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.explain(err)
	}
	defer resp.Body.Close()
	set, err := io.ReadAll(io.LimitReader(resp.Body, maxKeySet+1))
	switch {
	case err != nil:
		return nil, c.explain(err)
	case resp.StatusCode != http.StatusOK:
		return nil, withRemedy(fmt.Errorf("server has no keys at %s: HTTP status %d", at, resp.StatusCode),
			"upgrade the server: it signs no cards")
	case len(set) > maxKeySet:
		return nil, fmt.Errorf("cannot read keys: they are longer than %d bytes", maxKeySet)
	}
	return set, nil
}

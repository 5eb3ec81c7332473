package a2a

import (
	"encoding/json"
	"fmt"
)

// Signer signs cards.
type Signer interface {
	// Sign returns the card as it is to be served, with its signatures. Equal
	// cards give equal bytes as long as the keys stay.
	Sign(card []byte) ([]byte, error)
}

// encodeCard writes a card in the form of a version. Cards of 1.0 are signed;
// those of 0.3 are not: what its signatures cover was never settled.
func (s *surface) encodeCard(v version, c card) (json.RawMessage, error) {
	body, err := json.Marshal(cardIn(v, c))
	if err != nil {
		return nil, fmt.Errorf("cannot encode card: %w", err)
	}
	if s.cfg.Signer == nil || v != v10 {
		return body, nil
	}
	if body, err = s.cfg.Signer.Sign(body); err != nil {
		return nil, fmt.Errorf("cannot sign card: %w", err)
	}
	return body, nil
}
